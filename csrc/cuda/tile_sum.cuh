// C[g, row, col] = sum over runs of f(sum over a run of A[row, k] B[col, k]), f the square or the
// identity: sums of squared Jacobian columns, and second moments.
//
// A block computes one 64 x 64 tile of one group for one part of the runs (or of the summands, if
// there is a single run) and writes it to `partial`; `finish` adds the parts in order.
// Per step of depth 16 a thread does 256 multiply-adds for 8 loads: 16 flop a byte of float32 from
// global memory, above the ridge of sm_80 (12.5) as long as rows and columns fill the tile.
#pragma once

#include "correlate.cuh"

namespace lapkernels::cuda {

template <class T>
struct TileSum {
  Operand<T> a, b;
  int64_t rows, cols;  // of C, a group
  int row_tiles, col_tiles, groups, splits;
  int stack_a, stack_b;  // columns stacked in the lanes of a tile
  int64_t length, runs;  // of all parts
  int64_t part;          // runs, or summands of the single run, in one part
  bool squared, symmetric;
  SumOf<T>* partial;  // [splits, groups, rows, cols]
};

template <class T, class Stored>
__global__ void __launch_bounds__(Square::threads, 1) tile_sum_kernel(const TileSum<T> task) {
  using M = Memory<Stored, Square>;
  LAPKERNELS_SHARED(M, memory);
  int block = blockIdx.x;
  const int row_tile = block % task.row_tiles;
  block /= task.row_tiles;
  const int col_tile = block % task.col_tiles;
  block /= task.col_tiles;
  const int group = block % task.groups, split = block / task.groups;
  if (task.symmetric && row_tile > col_tile) return;

  Stack rows, cols;
  rows.size = rows.half = task.stack_a;
  cols.size = cols.half = task.stack_b;
  rows.count = task.stack_a;
  cols.count = task.stack_b;
  place_lanes(memory.lanes_a, Square::rows, task.a, row_tile, rows);
  place_lanes(memory.lanes_b, Square::cols, task.b, col_tile, cols);

  int64_t first = split * task.part, length = task.length, runs = 1;
  if (task.squared) {
    runs = min(task.part, task.runs - first);
    first *= length;
  } else {
    length = min(task.part, length - first);
  }
  Tile<Stored, Square> tile, total;
  tile.clear();
  total.clear();
  correlate(tile, memory, task.a, task.a.data + group * task.a.group_stride, task.b,
            task.b.data + group * task.b.group_stride, first, length, runs, [&] {
              if (!task.squared) return;
              total.add_square(tile);
              tile.clear();
            });
  if (task.squared)
    total.store(memory.result);
  else
    tile.store(memory.result);
  __syncthreads();

  const int parts_a = Square::rows / task.stack_a, parts_b = Square::cols / task.stack_b;
  SumOf<T>* to = task.partial + (int64_t(split) * task.groups + group) * task.rows * task.cols;
  for (int i = threadIdx.x; i < parts_a * parts_b; i += Square::threads) {
    const int part_a = i / parts_b, part_b = i % parts_b;
    const int64_t row = int64_t(row_tile) * parts_a + part_a;
    const int64_t col = int64_t(col_tile) * parts_b + part_b;
    if (row >= task.rows || col >= task.cols) continue;
    SumOf<T> sum = 0;
    for (int v = 0; v < task.stack_a; ++v)
      for (int w = 0; w < task.stack_b; ++w)
        sum += memory.result.at[part_a * task.stack_a + v][part_b * task.stack_b + w];
    to[row * task.cols + col] = sum;
  }
}

}  // namespace lapkernels::cuda
