// D[a, b, k] = sum_{v, l} (sum_t small[v, a, t, l] large[v, b, t * stride + k * dilation - offset,
// l])², lanes l contiguous.
//
// A thread has one lane and 4 x 4 entries (a, (b, k)) of G in registers: every load is coalesced,
// and 8 of them serve 16 multiply-adds. Columns and chunks of lanes are split between blocks;
// the squares are added over a block's lanes at its end.
#pragma once

#include "base/places.cuh"

namespace lapkernels::cuda {

constexpr int kLanes = 128, kSide = 4;

template <class T>
struct WindowSquaredSum {
  Operand<T> small, large;  // summands: column and position
  int64_t rows, cols, positions, lanes, chunks, runs, part;
  int64_t small_lane, large_lane;  // strides of the lanes
  int row_tiles, col_tiles, groups, splits;
  SumOf<T>* sums;  // [splits, groups, rows, cols]
};

template <class T>
__global__ void __launch_bounds__(kLanes)
    window_squared_sum_kernel(const WindowSquaredSum<T> task) {
  using S = SumOf<T>;
  using Places = Place[2 * kSide];
  using Sums = S[kSide * kSide][kLanes];
  LAPKERNELS_SHARED(Places, places);
  LAPKERNELS_SHARED(Sums, sums);
  int block = blockIdx.x;
  const int row_tile = block % task.row_tiles;
  block /= task.row_tiles;
  const int col_tile = block % task.col_tiles;
  block /= task.col_tiles;
  const int group = block % task.groups, split = block / task.groups;
  if (threadIdx.x < kSide)
    places[threadIdx.x] = task.small.lanes(row_tile * kSide + threadIdx.x);
  else if (threadIdx.x < 2 * kSide)
    places[threadIdx.x] = task.large.lanes(col_tile * kSide + threadIdx.x - kSide);
  __syncthreads();

  S total[kSide][kSide] = {};
  const int64_t end = min(task.runs, (split + 1) * task.part);
  for (int64_t run = split * task.part; run < end; ++run) {
    const int64_t column = run / task.chunks;
    const int64_t lane = (run - column * task.chunks) * kLanes + threadIdx.x;
    if (lane >= task.lanes) continue;
    const T* small = task.small.data + group * task.small.group_stride + lane * task.small_lane;
    const T* large = task.large.data + group * task.large.group_stride + lane * task.large_lane;
    S g[kSide][kSide] = {};
    for (int64_t t = 0; t < task.positions; ++t) {
      const Place at_small = task.small.summands(column * task.positions + t);
      const Place at_large = task.large.summands(column * task.positions + t);
      S x[kSide], y[kSide];
#pragma unroll
      for (int i = 0; i < kSide; ++i) {
        x[i] = widen(task.small.fetch(small, places[i], at_small));
        y[i] = widen(task.large.fetch(large, places[kSide + i], at_large));
      }
#pragma unroll
      for (int i = 0; i < kSide * kSide; ++i)
        g[i / kSide][i % kSide] += x[i / kSide] * y[i % kSide];
    }
#pragma unroll
    for (int i = 0; i < kSide * kSide; ++i)
      total[i / kSide][i % kSide] += g[i / kSide][i % kSide] * g[i / kSide][i % kSide];
  }
#pragma unroll
  for (int i = 0; i < kSide * kSide; ++i) sums[i][threadIdx.x] = total[i / kSide][i % kSide];
  __syncthreads();
  // Eight threads for each entry, then one.
  constexpr int kTeam = kLanes / (kSide * kSide);
  const int entry = threadIdx.x / kTeam, member = threadIdx.x % kTeam;
  S sum = 0;
  for (int l = member; l < kLanes; l += kTeam) sum += sums[entry][l];
  __syncthreads();
  sums[entry][member] = sum;
  __syncthreads();
  const int64_t row = int64_t(row_tile) * kSide + entry / kSide;
  const int64_t col = int64_t(col_tile) * kSide + entry % kSide;
  if (member != 0 || row >= task.rows || col >= task.cols) return;
  sum = 0;
  for (int m = 0; m < kTeam; ++m) sum += sums[entry][m];
  task.sums[((int64_t(split) * task.groups + group) * task.rows + row) * task.cols + col] = sum;
}

}  // namespace lapkernels::cuda
