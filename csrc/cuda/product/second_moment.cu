#include "second_moment.h"

#include "../ops.h"
#include "position_sums.cuh"

namespace lapkernels::cuda {

template <class Stored, class T, class Out>
static void moment_of(const Context& context, const Operand<T>& x, int64_t groups, int64_t summands,
                      const Grid<Out>& out, Update update) {
  TileSum<T> task{};
  task.a = task.b = x;
  task.stack_a = task.stack_b = 1;
  task.length = summands;
  task.runs = 1;
  task.symmetric = true;
  const bool narrow = takes_narrow<T>(1, x.lanes.count + x.ones, 1, 1);
  tile_sum<Stored>(context, task, narrow, groups, out, update);
}

template <class T>
void second_moment(const Context& context, const Operand<T>& x, int64_t groups, int64_t rows,
                   int64_t positions, bool reduce, const Grid<T>& out, Update update) {
  if (!reduce || positions == 1)
    return moment_of<T>(context, x, groups, rows * positions, out, update);
  const int64_t lanes = x.lanes.count + x.ones, width = groups * lanes;
  PositionSums<T> task{x,
                       rows,
                       positions,
                       lanes,
                       static_cast<int>(groups),
                       workspace<SumOf<T>>(context, rows * width)};
  launch(context, position_sums_kernel<T>, ceil_div(rows * width, kPositionThreads),
         kPositionThreads, task);
  const Grid<const SumOf<T>> sums{task.sums, {1, rows, width, 1, 1, 1}, {0, width, 1, 0, 0, 0}};
  moment_of<SumOf<T>>(context, plain_operand(sums, groups, {}), groups, rows, out, update);
}

LAPKERNELS_INSTANCES(second_moment)

}  // namespace lapkernels::cuda
