// The kernels for x86-64 with AVX-512.
#if defined(__x86_64__)
#include "headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma")
#endif

#define LAPKERNELS_ISA avx512
#define LAPKERNELS_ISA_NAME "avx512"
#define LAPKERNELS_VECTOR_BYTES 64
#define LAPKERNELS_TUNING "../tuning/avx512.h"
#include "all_kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
