// C[n, v, w] = sum_p G_{n,v}[p] variance[p] G_{n,w}[p].
//
// A block takes one sample, a part of the tiles, and up to 16 columns stacked with the channels:
// all columns, or a pair of blocks of 8. After each tile of G a thread takes a subset of the
// parameters and 4 x 4 pairs of columns: 8 reads of shared memory a parameter for 16 multiply-adds,
// whose sums stay in registers until the last tile.
#pragma once

#include "product/jacobian_tiles.cuh"

namespace lapkernels::cuda {

constexpr int kPairs = 16, kHalfPairs = 8;

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    jacobian_gram_kernel(const JacobianTiles<T> task) {
  using M = Memory<T, Shape>;
  using S = SumOf<T>;
  LAPKERNELS_SHARED(M, memory);
  // Pairs of blocks of columns, the first not after the second.
  const int64_t blocks = task.columns <= kPairs ? 1 : (task.columns + kHalfPairs - 1) / kHalfPairs;
  const int64_t split = blockIdx.x % task.splits;
  int64_t rest = blockIdx.x / task.splits;
  const int64_t second = rest % blocks;
  rest /= blocks;
  const int64_t first = rest % blocks, sample = rest / blocks;
  if (first > second) return;
  Stack stack;
  stack.size = task.stack;
  stack.half = blocks == 1 ? task.stack : kHalfPairs;
  stack.first = first * kHalfPairs;
  stack.second = second * kHalfPairs;
  stack.count = task.columns;

  const int i = threadIdx.x / 4 % 4 * 4, j = threadIdx.x % 4 * 4, set = threadIdx.x / kPairs;
  constexpr int kSets = Shape::threads / kPairs;
  S sum[4][4] = {};
  JacobianTile<T, Shape> g(task, memory);
  for (int64_t tile = split; tile < task.tiles(); tile += task.splits) {
    g.compute(tile, sample, stack);
    for (int p = set; p < g.count(); p += kSets) {
      const S variance = g.variance(p);
      S left[4], right[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        left[c] = i + c < task.stack ? variance * g(i + c, p) : S(0);
        right[c] = j + c < task.stack ? g(j + c, p) : S(0);
      }
#pragma unroll
      for (int c = 0; c < 16; ++c) sum[c / 4][c % 4] += left[c / 4] * right[c % 4];
    }
    __syncthreads();
  }
  // [sets][16][16] in the memory of the tile.
  static_assert(sizeof(memory.result) >= kSets * kPairs * kPairs * sizeof(S));
  S* const all = &memory.result.at[0][0];
#pragma unroll
  for (int c = 0; c < 16; ++c)
    all[(set * kPairs + i + c / 4) * kPairs + j + c % 4] = sum[c / 4][c % 4];
  __syncthreads();
  S* to = task.sums + (split * task.samples + sample) * task.columns * task.columns;
  for (int pair = threadIdx.x; pair < kPairs * kPairs; pair += Shape::threads) {
    const int v = pair / kPairs, w = pair % kPairs;
    S total = 0;
    for (int s = 0; s < kSets; ++s) total += all[s * kPairs * kPairs + pair];
    const int64_t row = stack.column(v), col = stack.column(w);
    if (v >= task.stack || w >= task.stack || row >= task.columns || col >= task.columns) continue;
    if (blocks == 1 || (first == second && v < kHalfPairs && w < kHalfPairs)) {
      to[row * task.columns + col] = total;
    } else if (first != second && v < kHalfPairs && w >= kHalfPairs) {
      to[row * task.columns + col] = total;
      to[col * task.columns + row] = total;
    }
  }
}

}  // namespace lapkernels::cuda
