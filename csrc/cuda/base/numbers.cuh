// Element types, the type their sums are kept in, and vectors of four.
#pragma once

#include "../kernels.h"
#include "platform.cuh"

namespace lapkernels::cuda {

template <class T>
struct Sum {
  using type = float;
};
template <>
struct Sum<double> {
  using type = double;
};
template <class T>
using SumOf = typename Sum<T>::type;

template <class T>
struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) Four {
  T at[4];
};

// Whether vectors of four can be read at `data`.
template <class T>
bool is_vector(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Four<T>) == 0;
}

// The vector of four at `data`; a GPU faults where that is not aligned.
template <class T>
__device__ inline Four<T>& four_at(T* data) {
#ifndef __CUDACC__
  if (!is_vector(data)) emulator::fail("a vector of four is not aligned");
#endif
  return *reinterpret_cast<Four<T>*>(data);
}
template <class T>
__device__ inline const Four<T>& four_at(const T* data) {
  return four_at(const_cast<T*>(data));
}

__device__ inline float widen(float value) { return value; }
__device__ inline double widen(double value) { return value; }
#ifdef __CUDACC__
__device__ inline float widen(Half value) { return __half2float(__ushort_as_half(value.bits)); }
__device__ inline float widen(BFloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
#else
inline float widen(Half value) { return emulator::half_to_float(value.bits); }
inline float widen(BFloat16 value) { return emulator::bfloat16_to_float(value.bits); }
#endif

template <class T>
__device__ inline T narrow(SumOf<T> value) {
  if constexpr (sizeof(T) > 2) {
    return value;
  } else if constexpr (std::is_same_v<T, Half>) {
#ifdef __CUDACC__
    return {__half_as_ushort(__float2half_rn(value))};
#else
    return {emulator::float_to_half(value)};
#endif
  } else {
#ifdef __CUDACC__
    return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
    return {emulator::float_to_bfloat16(value)};
#endif
  }
}

// out <- decay * out + scale * value; with no decay `out` is not read.
template <class T>
struct Blend {
  SumOf<T> decay, scale;

  __device__ void write(T& out, SumOf<T> value) const {
    value *= scale;
    out = narrow<T>(decay == 0 ? value : decay * widen(out) + value);
  }
};

template <class T>
Blend<T> blend(Update update) {
  return {static_cast<SumOf<T>>(update.decay), static_cast<SumOf<T>>(update.scale)};
}

}  // namespace lapkernels::cuda
