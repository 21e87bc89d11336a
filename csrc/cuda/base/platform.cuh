// CUDA itself, or, without nvcc, the emulation with which tests run the same code on a CPU.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>
#define LAPKERNELS_SHARED(type, name) __shared__ type name
#else
#include "emulator.h"
#endif
