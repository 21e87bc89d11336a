#include "tile_sum.h"

namespace lapkernels::cuda {

template <class Stored, class T, class Out>
void tile_sum(const Context& context, TileSum<T> task, int64_t groups, const Grid<Out>& out,
              Update update) {
  task.rows = task.a.lanes.count + task.a.ones;
  task.cols = task.b.lanes.count + task.b.ones;
  task.groups = static_cast<int>(groups);
  task.row_tiles = static_cast<int>(ceil_div(task.rows, Square::rows / task.stack_a));
  task.col_tiles = static_cast<int>(ceil_div(task.cols, Square::cols / task.stack_b));
  const int64_t tiles = int64_t(task.row_tiles) * task.col_tiles * groups;
  const int64_t work = task.squared ? task.runs : ceil_div(task.length, 16 * kDepth);
  const int64_t splits = split_count(task.symmetric ? ceil_div(tiles, 2) : tiles, work);
  task.part = task.squared ? ceil_div(task.runs, splits)
                           : ceil_div(ceil_div(task.length, splits), kDepth) * kDepth;
  task.splits = static_cast<int>(ceil_div(task.squared ? task.runs : task.length, task.part));
  task.partial = workspace<SumOf<T>>(context, task.splits * groups * task.rows * task.cols);
  launch(context, tile_sum_kernel<T, Stored>, tiles * task.splits, Square::threads, task);
  finish(context, task.partial, task.splits, out, update, task.symmetric ? task.rows : 0);
}

#define LAPKERNELS_TILE_SUM(stored, in, out) \
  template void tile_sum<stored>(const Context&, TileSum<in>, int64_t, const Grid<out>&, Update);
LAPKERNELS_TILE_SUM(float, float, float)
LAPKERNELS_TILE_SUM(double, double, double)
LAPKERNELS_TILE_SUM(Half, Half, Half)
LAPKERNELS_TILE_SUM(BFloat16, BFloat16, BFloat16)
LAPKERNELS_TILE_SUM(float, Half, Half)
LAPKERNELS_TILE_SUM(float, BFloat16, BFloat16)
LAPKERNELS_TILE_SUM(float, float, Half)
LAPKERNELS_TILE_SUM(float, float, BFloat16)

}  // namespace lapkernels::cuda
