// C[g, row, col] = sum over runs of f(sum over a run of A[row, k] B[col, k]), f the square or the
// identity: sums of squared Jacobian columns, and second moments.
//
// A block computes one tile of one group: of several runs, which it squares and adds, or, where
// there are too few of those for all blocks, of a part of one run, which `finish` squares. Parts go
// to `partial`; `finish` adds them in order.
// Per step of depth 16 a thread does 256 multiply-adds for 8 loads: 16 flop a byte of float32 from
// global memory, above the ridge of sm_80 (12.5) as long as rows and columns fill the tile of
// 64 x 64; 6.4 for that of 16 x 64.
#pragma once

#include "correlate.cuh"

namespace lapkernels::cuda {

template <class T>
struct TileSum {
  Operand<T> a, b;
  int64_t rows, cols;  // of C, a group
  int row_tiles, col_tiles, groups;
  int stack_a, stack_b;  // columns stacked in the lanes of a tile
  int64_t length, runs;
  bool squared, symmetric;
  bool whole;         // a part is `part` runs, squared; else `part` summands of one run
  int64_t part;       // of the runs, or of a run's summands
  int splits;         // parts of all runs, or of each run
  SumOf<T>* partial;  // whole: [splits, groups, rows, cols]; else [runs, stack, splits, ...]
};

template <class T, class Stored, class Shape>
__global__ void __launch_bounds__(Shape::threads, 1) tile_sum_kernel(const TileSum<T> task) {
  using M = Memory<Stored, Shape>;
  LAPKERNELS_SHARED(M, memory);
  int block = blockIdx.x;
  const int row_tile = block % task.row_tiles;
  block /= task.row_tiles;
  const int col_tile = block % task.col_tiles;
  block /= task.col_tiles;
  const int group = block % task.groups;
  block /= task.groups;
  const int split = block % task.splits, run = block / task.splits;
  if (task.symmetric && row_tile * Shape::rows >= (col_tile + 1) * Shape::cols) return;

  Stack rows, cols;
  rows.size = rows.half = task.stack_a;
  cols.size = cols.half = task.stack_b;
  rows.count = task.stack_a;
  cols.count = task.stack_b;
  place_lanes(memory.lanes_a, Shape::rows, task.a, row_tile, rows);
  place_lanes(memory.lanes_b, Shape::cols, task.b, col_tile, cols);

  int64_t first = split * task.part, length = task.length, runs = 1;
  if (task.whole) {
    runs = min(task.part, task.runs - first);
    first *= length;
  } else {
    length = min(task.part, length - first);
    first += run * task.length;
  }
  Tile<Stored, Shape> tile, total;
  tile.clear();
  total.clear();
  correlate(tile, memory, task.a, task.a.data + group * task.a.group_stride, task.b,
            task.b.data + group * task.b.group_stride, first, length, runs, [&] {
              if (!task.whole) return;
              total.add_square(tile);
              tile.clear();
            });
  if (task.whole)
    total.store(memory.result);
  else
    tile.store(memory.result);
  __syncthreads();

  const int parts_a = Shape::rows / task.stack_a, parts_b = Shape::cols / task.stack_b;
  const int stack = task.stack_a * task.stack_b;
  const int64_t size = task.groups * task.rows * task.cols;
  for (int i = threadIdx.x; i < parts_a * parts_b; i += Shape::threads) {
    const int part_a = i / parts_b, part_b = i % parts_b;
    const int64_t row = int64_t(row_tile) * parts_a + part_a;
    const int64_t col = int64_t(col_tile) * parts_b + part_b;
    if (row >= task.rows || col >= task.cols) continue;
    SumOf<T>* to = task.partial + (group * task.rows + row) * task.cols + col;
    SumOf<T> sum = 0;
    for (int v = 0; v < stack; ++v) {
      // One of the stacks has a single column.
      const SumOf<T> value = memory.result.at[part_a * task.stack_a + v % task.stack_a]
                                             [part_b * task.stack_b + v % task.stack_b];
      sum += value;
      if (!task.whole) to[((int64_t(run) * stack + v) * task.splits + split) * size] = value;
    }
    if (task.whole) to[split * size] = sum;
  }
}

}  // namespace lapkernels::cuda
