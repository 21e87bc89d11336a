// The kernels for any machine: 16-byte vectors, which x86-64 and ARM both have.
#include "headers.h"

#define LAPKERNELS_ISA baseline
#define LAPKERNELS_ISA_NAME "baseline"
#define LAPKERNELS_VECTOR_BYTES 16
#define LAPKERNELS_TUNING "../tuning/baseline.h"
#include "all_kernels.h"
