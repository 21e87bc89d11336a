// out <- decay * out + scale * m * phi'(z)². Memory-bound: 12 bytes an element of float32, read and
// written four at a time where all three tensors allow it.
#pragma once

#include "base/activation.cuh"

namespace lapkernels::cuda {

constexpr int kPointThreads = 256;

template <class T>
struct SquaredDerivative {
  T* out;
  const T* m;
  const T* z;
  int64_t size;
  bool fours;  // all are aligned to vectors
  Activation activation;
  SumOf<T> slope;
  Blend<T> update;

  __device__ void apply(T& to, T value, T at) const {
    update.write(to, widen(value) * squared_slope(activation, SumOf<T>(widen(at)), slope));
  }
};

template <class T>
__global__ void __launch_bounds__(kPointThreads, 1)
    squared_derivative_kernel(const SquaredDerivative<T> task) {
  const int64_t begin = (int64_t(blockIdx.x) * kPointThreads + threadIdx.x) * 4;
  if (begin >= task.size) return;
  if (task.fours && begin + 4 <= task.size) {
    const Four<T> m = four_at(task.m + begin), z = four_at(task.z + begin);
    Four<T> out = {};
    if (task.update.decay != 0) out = four_at(task.out + begin);
#pragma unroll
    for (int c = 0; c < 4; ++c) task.apply(out.at[c], m.at[c], z.at[c]);
    four_at(task.out + begin) = out;
  } else {
    const int64_t end = min(begin + 4, task.size);
    for (int64_t i = begin; i < end; ++i) task.apply(task.out[i], task.m[i], task.z[i]);
  }
}

}  // namespace lapkernels::cuda
