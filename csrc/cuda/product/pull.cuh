// out[i, col] = factor[i, col] sum_{o,k} W[o, i, k] s[o, place(col, k)], W squared or not: the
// transpose of a layer, col being (column, sample, position).
//
// A block computes a tile of channels times positions, the sum being over channels and taps.
#pragma once

#include "../base/activation.cuh"
#include "correlate.cuh"

namespace lapkernels::cuda {

template <class T>
struct Pull {
  Operand<T> weight, s;
  int64_t rows, summands;
  int row_tiles, groups;
  int64_t col_tiles;
  T* out;
  Walk to;
  int64_t channel_stride, group_stride;
  const T* factor;  // or null
  Walk factor_at;
  int64_t factor_channel_stride, factor_group_stride;
  bool slopes;  // `factor` holds the operand of the activation, not its slope
  Activation activation;
  SumOf<T> slope;
  Blend<T> update;
};

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::threads, 1) pull_kernel(const Pull<T> task) {
  using S = SumOf<T>;
  using M = Memory<S, Shape>;
  LAPKERNELS_SHARED(M, memory);
  const int64_t row_tile = blockIdx.x % task.row_tiles, rest = blockIdx.x / task.row_tiles;
  const int64_t group = rest % task.groups, col_tile = rest / task.groups;
  place_lanes(memory.lanes_a, Shape::rows, task.weight, row_tile, {});
  place_lanes(memory.lanes_b, Shape::cols, task.s, col_tile, {});
  Tile<S, Shape> tile;
  tile.clear();
  correlate(tile, memory, task.weight, task.weight.data + group * task.weight.group_stride, task.s,
            task.s.data + group * task.s.group_stride, 0, task.summands, 1, [] {});
  tile.store(memory.result);
  __syncthreads();

  const int col = threadIdx.x % Shape::cols;
  const int64_t index = col_tile * Shape::cols + col;
  if (index >= task.to.count) return;
  T* to = task.out + group * task.group_stride + task.to(index).offset;
  const T* factor = task.factor;
  if (factor) factor += group * task.factor_group_stride + task.factor_at(index).offset;
  for (int i = threadIdx.x / Shape::cols; i < Shape::rows; i += Shape::threads / Shape::cols) {
    const int64_t row = row_tile * Shape::rows + i;
    if (row >= task.rows) return;
    S value = memory.result.at[i][col];
    if (factor) {
      const S z = widen(factor[row * task.factor_channel_stride]);
      value *= task.slopes ? squared_slope(task.activation, z, task.slope) : z;
    }
    task.update.write(to[row * task.channel_stride], value);
  }
}

}  // namespace lapkernels::cuda
