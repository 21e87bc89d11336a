// out <- decay * out + scale * sum_s partial[s], the parts added in order: the second pass of every
// sum that is split between blocks. One thread an element; reads 4 bytes a part and flop.
#pragma once

#include "places.cuh"

namespace lapkernels::cuda {

template <class T>
struct Finish {
  const SumOf<T>* partial;  // [splits, count]
  int64_t splits, count;
  T* out;
  Walk to;
  Blend<T> update;
  int64_t symmetric;  // side of square matrices of which `partial` holds the upper half, or 0
};

constexpr int kFinishThreads = 256;

template <class T>
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const Finish<T> task) {
  const int64_t index = int64_t(blockIdx.x) * kFinishThreads + threadIdx.x;
  if (index >= task.count) return;
  int64_t source = index;
  if (task.symmetric) {
    const int64_t side = task.symmetric, row = index / side % side, col = index % side;
    if (row > col) source += (col - row) * side + (row - col);
  }
  SumOf<T> sum = 0;
  for (int64_t split = 0; split < task.splits; ++split)
    sum += task.partial[split * task.count + source];
  task.update.write(task.out[task.to(index).offset], sum);
}

}  // namespace lapkernels::cuda
