// out <- decay * out + scale * sum_r f(sum_s partial[r, s]), f the square or the identity: the
// second pass of every sum that is split between blocks.
//
// A team of threads adds up one element: each thread every team-th r in order, then a fixed tree.
// The fewer elements, the larger the teams. Memory-bound, 4 bytes a flop; reads are coalesced.
#pragma once

#include "../base/places.cuh"

namespace lapkernels::cuda {

template <class T>
struct Finish {
  const SumOf<T>* partial;  // [runs, splits, count]
  int64_t runs, splits, count;
  bool squared;
  int team;  // a power of two
  T* out;
  Walk to;
  Blend<T> update;
  int64_t symmetric;  // side of square matrices of which `partial` holds the upper half, or 0
};

constexpr int kFinishThreads = 256;

template <class T>
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const Finish<T> task) {
  using S = SumOf<T>;
  using Sums = S[kFinishThreads];
  LAPKERNELS_SHARED(Sums, sums);
  const int elements = kFinishThreads / task.team;
  const int64_t index = int64_t(blockIdx.x) * elements + threadIdx.x % elements;
  int64_t source = index;
  if (task.symmetric) {
    const int64_t side = task.symmetric, row = index / side % side, col = index % side;
    if (row > col) source += (col - row) * side + (row - col);
  }
  S sum = 0;
  if (index < task.count)
    for (int64_t run = threadIdx.x / elements; run < task.runs; run += task.team) {
      S value = 0;
      for (int64_t split = 0; split < task.splits; ++split)
        value += task.partial[(run * task.splits + split) * task.count + source];
      sum += task.squared ? value * value : value;
    }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kFinishThreads / 2; half >= elements; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x < elements && index < task.count)
    task.update.write(task.out[task.to(index).offset], sums[threadIdx.x]);
}

}  // namespace lapkernels::cuda
