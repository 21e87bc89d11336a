// var[n, v] = sum_p variance[p] G_{n,v}[p]^2.
//
// A block takes one sample, one stack of columns and a part of the tiles; a thread has one column.
// A tile of rows x cols costs 2 * rows * cols * positions flop in the product and
// 3 * rows * cols after it.
#pragma once

#include "product/jacobian_tiles.cuh"

namespace lapkernels::cuda {

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    jacobian_squared_dot_kernel(const JacobianTiles<T> task) {
  using M = Memory<T, Shape>;
  using S = SumOf<T>;
  LAPKERNELS_SHARED(M, memory);
  using Sums = S[Shape::threads];
  LAPKERNELS_SHARED(Sums, sums);
  const int64_t stacks = (task.columns + task.stack - 1) / task.stack;
  const int64_t split = blockIdx.x % task.splits, rest = blockIdx.x / task.splits;
  Stack stack;
  stack.size = stack.half = task.stack;
  stack.first = rest % stacks * task.stack;
  stack.count = task.columns;
  const int64_t sample = rest / stacks;

  const int v = threadIdx.x % task.stack, slot = threadIdx.x / task.stack;
  const int slots = Shape::threads / task.stack;
  S sum = 0;
  JacobianTile<T, Shape> g(task, memory);
  for (int64_t tile = split; tile < task.tiles(); tile += task.splits) {
    g.compute(tile, sample, stack);
    if (slot < slots)
      for (int i = slot; i < g.count(); i += slots) sum += g.variance(i) * g(v, i) * g(v, i);
    __syncthreads();
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  const int64_t column = stack.first + threadIdx.x;
  if (threadIdx.x >= task.stack || column >= task.columns) return;
  S total = 0;
  for (int s = 0; s < slots; ++s) total += sums[s * task.stack + threadIdx.x];
  task.sums[(split * task.samples + sample) * task.columns + column] = total;
}

}  // namespace lapkernels::cuda
