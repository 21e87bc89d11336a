#include "jacobian_gram.cuh"

#include "product/jacobian_tiles.h"
#include "ops.h"

namespace lapkernels::cuda {

template <class Shape, class T>
static void gram_in(const Context& context, JacobianTiles<T>& task, int64_t stack,
                    const Grid<T>& out, Update update) {
  const int64_t blocks = task.columns <= kPairs ? 1 : ceil_div(task.columns, kHalfPairs);
  const int64_t lists = task.samples * blocks * blocks;
  set_stack<Shape>(task, stack, lists);
  task.sums =
      workspace<SumOf<T>>(context, task.splits * task.samples * task.columns * task.columns);
  launch(context, jacobian_gram_kernel<T, Shape>, lists * task.splits, Shape::threads, task);
  finish(context, {task.sums, task.splits}, out, update);
}

template <class T>
void jacobian_gram(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                   Grid<const T> large, Grid<const T> variance, Taps taps) {
  if (small.size[0] > 1 && large.size[0] > 1)
    throw std::runtime_error(
        "jacobian_gram: small and large both have columns; on a GPU one of them must have 1");
  auto task = jacobian_tiles(small, large, variance, taps);
  const int64_t stack = std::min<int64_t>(task.columns, kPairs);
  const bool narrow = !task.on_b && takes_narrow<T>(stack, task.rows, stack, stack);
  with_shape<T>(narrow, [&]<class Shape>() { gram_in<Shape>(context, task, stack, out, update); });
}

LAPKERNELS_INSTANCES(jacobian_gram)

}  // namespace lapkernels::cuda
