// The kernels for x86-64 with AVX2 and FMA.
#if defined(__x86_64__)
#include "headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

#define LAPKERNELS_ISA avx2
#define LAPKERNELS_ISA_NAME "avx2"
#define LAPKERNELS_VECTOR_BYTES 32
#define LAPKERNELS_TUNING "../tuning/avx2.h"
#include "all_kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
