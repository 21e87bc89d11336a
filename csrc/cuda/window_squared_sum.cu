#include "window_squared_sum.cuh"

#include "product/finish.h"
#include "ops.h"
#include "product/tile_sum.h"

namespace lapkernels::cuda {

template <class T>
void window_squared_sum(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                        Grid<const T> large, Taps taps) {
  WindowSquaredSum<T> task{};
  task.lanes = small.size[1];
  task.small_lane = small.stride[1];
  task.large_lane = large.stride[1];
  const int64_t columns = std::max(small.size[0], large.size[0]);
  // The lane is the thread's, so a summand is a column and a position.
  small.size[1] = large.size[1] = 1;
  task.small = plain_operand(small, taps.groups, {columns, 1});
  task.large = patch_operand(large, taps, small.size + 3, false, {columns, 1});
  task.rows = task.small.lanes.count;
  task.cols = task.large.lanes.count;
  task.positions = position_count(small);
  task.chunks = ceil_div(task.lanes, kLanes);
  task.runs = columns * task.chunks;
  task.row_tiles = static_cast<int>(ceil_div(task.rows, kSide));
  task.col_tiles = static_cast<int>(ceil_div(task.cols, kSide));
  task.groups = static_cast<int>(taps.groups);
  const int64_t tiles = int64_t(task.row_tiles) * task.col_tiles * task.groups;
  task.part = ceil_div(task.runs, split_count(tiles, task.runs));
  task.splits = static_cast<int>(ceil_div(task.runs, task.part));
  task.sums = workspace<SumOf<T>>(context, task.splits * task.groups * task.rows * task.cols);
  launch(context, window_squared_sum_kernel<T>, tiles * task.splits, kLanes, task);
  finish(context, {task.sums, task.splits}, out, update);
}

LAPKERNELS_INSTANCES(window_squared_sum)

}  // namespace lapkernels::cuda
