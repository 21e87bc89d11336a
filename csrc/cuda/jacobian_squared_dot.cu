#include "jacobian_squared_dot.cuh"

#include "product/jacobian_tiles.h"
#include "ops.h"

namespace lapkernels::cuda {

template <class Shape, class T>
static void dot_in(const Context& context, JacobianTiles<T>& task, int64_t stack,
                   const Grid<T>& out, Update update) {
  const int64_t lists = task.samples * ceil_div(task.columns, stack);
  set_stack<Shape>(task, stack, lists);
  task.sums = workspace<SumOf<T>>(context, task.splits * task.samples * task.columns);
  launch(context, jacobian_squared_dot_kernel<T, Shape>, lists * task.splits, Shape::threads, task);
  finish(context, {task.sums, task.splits}, out, update);
}

template <class T>
void jacobian_squared_dot(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                          Grid<const T> large, Grid<const T> variance, Taps taps) {
  auto task = jacobian_tiles(small, large, variance, taps);
  if (task.on_b || (small.size[0] > 1 && large.size[0] > 1)) {
    const int64_t stack = task.on_b ? stack_size(task.columns, task.cols, Square::cols) : 1;
    return dot_in<Square>(context, task, stack, out, update);
  }
  const int64_t in_narrow = stack_size(task.columns, task.rows, Narrow::rows);
  const int64_t in_square = stack_size(task.columns, task.rows, Square::rows);
  const bool narrow = takes_narrow<T>(task.columns, task.rows, in_narrow, in_square);
  with_shape<T>(narrow, [&]<class Shape>() {
    dot_in<Shape>(context, task, narrow ? in_narrow : in_square, out, update);
  });
}

LAPKERNELS_INSTANCES(jacobian_squared_dot)

}  // namespace lapkernels::cuda
