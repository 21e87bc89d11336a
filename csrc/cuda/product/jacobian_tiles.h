// Host side of jacobian_tiles.cuh.
#pragma once

#include "finish.h"
#include "jacobian_tiles.cuh"
#include "tile_sum.h"

namespace lapkernels::cuda {

// Everything but the stack, the splits and the sums.
template <class T>
JacobianTiles<T> jacobian_tiles(const Grid<const T>& small, const Grid<const T>& large,
                                const Grid<const T>& variance, const Taps& taps) {
  JacobianTiles<T> task{};
  task.a = plain_operand(small, taps.groups, {});
  task.b = patch_operand(large, taps, small.size + 3, false, {});
  task.variance = variance.data;
  task.rows = task.a.lanes.count;
  task.cols = task.b.lanes.count;
  task.positions = position_count(small);
  task.samples = small.size[1];
  task.columns = std::max(small.size[0], large.size[0]);
  task.groups = static_cast<int>(taps.groups);
  task.on_b = small.size[0] == 1 && large.size[0] > 1;
  return task;
}

// Sets the stack, and splits the tiles for `lists` lists of sums.
template <class Shape, class T>
void set_stack(JacobianTiles<T>& task, int64_t stack, int64_t lists) {
  task.stack = static_cast<int>(stack);
  set_fours(task.a, task.on_b ? 1 : stack, task.positions);
  set_fours(task.b, task.on_b ? stack : 1, task.positions);
  const int64_t parts_a = Shape::rows / (task.on_b ? 1 : stack);
  const int64_t parts_b = Shape::cols / (task.on_b ? stack : 1);
  task.row_tiles = static_cast<int>(ceil_div(task.rows, parts_a));
  task.col_tiles = static_cast<int>(ceil_div(task.cols, parts_b));
  const int64_t tiles = int64_t(task.row_tiles) * task.col_tiles * task.groups;
  task.splits = static_cast<int>(split_count(lists, tiles));
}

}  // namespace lapkernels::cuda
