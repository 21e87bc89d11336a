#include "tile_sum.h"

namespace lapkernels::cuda {

template <class Stored, class Shape, class T, class Out>
static void tile_sum_in(const Context& context, TileSum<T> task, int64_t groups,
                        const Grid<Out>& out, Update update) {
  task.rows = task.a.lanes.count + task.a.ones;
  task.cols = task.b.lanes.count + task.b.ones;
  task.groups = static_cast<int>(groups);
  task.row_tiles = static_cast<int>(ceil_div(task.rows, Shape::rows / task.stack_a));
  task.col_tiles = static_cast<int>(ceil_div(task.cols, Shape::cols / task.stack_b));
  set_fours(task.a, task.stack_a, task.length);
  set_fours(task.b, task.stack_b, task.length);
  const int64_t all = int64_t(task.row_tiles) * task.col_tiles * groups;
  const int64_t tiles = task.symmetric ? ceil_div(all, 2) : all;
  const int64_t chunks = ceil_div(task.length, 16 * kDepth);
  const int64_t run_splits = split_count(tiles * task.runs, chunks);
  task.whole = task.squared && run_splits == 1;
  const int64_t work = task.whole ? task.runs : task.length;
  const int64_t splits = task.whole ? split_count(tiles, task.runs) : run_splits;
  task.part = ceil_div(work, splits);
  if (!task.whole) task.part = ceil_div(task.part, kDepth) * kDepth;
  task.splits = static_cast<int>(ceil_div(work, task.part));
  const int64_t runs = task.whole ? 1 : task.runs;
  const int64_t columns = task.whole ? 1 : task.stack_a * task.stack_b;
  task.partial =
      workspace<SumOf<T>>(context, runs * columns * task.splits * groups * task.rows * task.cols);
  launch(context, tile_sum_kernel<T, Stored, Shape>, all * task.splits * runs, Shape::threads,
         task);
  const Parts<SumOf<T>> parts{task.partial, task.splits, runs * columns,
                              task.squared && !task.whole};
  finish(context, parts, out, update, task.symmetric ? task.rows : 0);
}

template <class Stored, class T, class Out>
void tile_sum(const Context& context, TileSum<T> task, bool narrow, int64_t groups,
              const Grid<Out>& out, Update update) {
  with_shape<T>(narrow, [&]<class Shape>() {
    tile_sum_in<Stored, Shape>(context, task, groups, out, update);
  });
}

#define LAPKERNELS_TILE_SUM(stored, in, out)                                                   \
  template void tile_sum<stored>(const Context&, TileSum<in>, bool, int64_t, const Grid<out>&, \
                                 Update);
LAPKERNELS_TILE_SUM(float, float, float)
LAPKERNELS_TILE_SUM(double, double, double)
LAPKERNELS_TILE_SUM(Half, Half, Half)
LAPKERNELS_TILE_SUM(BFloat16, BFloat16, BFloat16)
LAPKERNELS_TILE_SUM(float, Half, Half)
LAPKERNELS_TILE_SUM(float, BFloat16, BFloat16)
LAPKERNELS_TILE_SUM(float, float, Half)
LAPKERNELS_TILE_SUM(float, float, BFloat16)

}  // namespace lapkernels::cuda
