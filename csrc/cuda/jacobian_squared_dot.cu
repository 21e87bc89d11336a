#include "jacobian_squared_dot.cuh"

#include "jacobian_tiles.h"
#include "ops.h"

namespace lapkernels::cuda {

template <class T>
void jacobian_squared_dot(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                          Grid<const T> large, Grid<const T> variance, Taps taps) {
  auto task = jacobian_tiles(small, large, variance, taps);
  const int64_t lanes = task.on_b ? task.cols : task.rows;
  const bool stacked = small.size[0] == 1 || large.size[0] == 1;
  const int64_t stack =
      stacked ? std::min(task.columns, std::max<int64_t>(1, Square::rows / lanes)) : 1;
  const int64_t lists = task.samples * ceil_div(task.columns, stack);
  set_stack(task, stack, lists);
  task.sums = workspace<SumOf<T>>(context, task.splits * task.samples * task.columns);
  launch(context, jacobian_squared_dot_kernel<T>, lists * task.splits, Square::threads, task);
  finish(context, task.sums, task.splits, out, update);
}

LAPKERNELS_INSTANCES(jacobian_squared_dot)

}  // namespace lapkernels::cuda
