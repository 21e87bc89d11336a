// Shared by the kernels that compute a sample's Jacobian columns G tile by tile and keep only sums
// over the parameters.
#pragma once

#include "correlate.cuh"

namespace lapkernels::cuda {

template <class T>
struct JacobianTiles {
  Operand<T> a, b;
  const T* variance;   // [groups, rows, cols]
  int64_t rows, cols;  // of the weight, a group
  int64_t positions, samples, columns;
  int row_tiles, col_tiles, groups, splits;
  int stack;       // columns in the lanes of a tile
  bool on_b;       // the stack is on the lanes of `b`
  SumOf<T>* sums;  // [splits, ...]

  __device__ int64_t tiles() const { return int64_t(row_tiles) * col_tiles * groups; }
};

// G of one sample, for the columns of a stack and a tile of parameters, in shared memory.
template <class T, class Shape>
struct JacobianTile {
  const JacobianTiles<T>& task;
  Memory<T, Shape>& memory;
  int parts_a, parts_b;
  int64_t row, col, group;

  __device__ JacobianTile(const JacobianTiles<T>& task, Memory<T, Shape>& memory)
      : task(task),
        memory(memory),
        parts_a(Shape::rows / (task.on_b ? 1 : task.stack)),
        parts_b(Shape::cols / (task.on_b ? task.stack : 1)) {}

  // The number of parameters in the tile, those outside of the weight included.
  __device__ int count() const { return parts_a * parts_b; }

  __device__ void compute(int64_t index, int64_t sample, const Stack& stack) {
    const int64_t row_tile = index % task.row_tiles;
    const int64_t col_tile = index / task.row_tiles % task.col_tiles;
    group = index / task.row_tiles / task.col_tiles;
    row = row_tile * parts_a;
    col = col_tile * parts_b;
    // The other factor may depend on the column only if the stack has one column.
    Stack rows = stack, cols = stack;
    if (task.on_b)
      rows.size = rows.half = 1;
    else
      cols.size = cols.half = 1;
    place_lanes(memory.lanes_a, Shape::rows, task.a, row_tile, rows);
    place_lanes(memory.lanes_b, Shape::cols, task.b, col_tile, cols);
    Tile<T, Shape> tile;
    tile.clear();
    correlate(tile, memory, task.a, task.a.data + group * task.a.group_stride, task.b,
              task.b.data + group * task.b.group_stride, sample * task.positions, task.positions, 1,
              [] {});
    tile.store(memory.result);
    __syncthreads();
  }

  // The variance of parameter i of the tile, zero outside of the weight.
  __device__ SumOf<T> variance(int i) const {
    const int64_t r = row + i / parts_b, c = col + i % parts_b;
    if (r >= task.rows || c >= task.cols) return 0;
    return widen(task.variance[(group * task.rows + r) * task.cols + c]);
  }

  // G of column v of the stack for parameter i.
  __device__ SumOf<T> operator()(int v, int i) const {
    const int part_a = i / parts_b, part_b = i % parts_b;
    return task.on_b ? memory.result.at[part_a][part_b * task.stack + v]
                     : memory.result.at[part_a * task.stack + v][part_b];
  }
};

}  // namespace lapkernels::cuda
