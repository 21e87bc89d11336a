#include "jacobian_gram.cuh"

#include "jacobian_tiles.h"
#include "ops.h"

namespace lapkernels::cuda {

template <class T>
void jacobian_gram(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                   Grid<const T> large, Grid<const T> variance, Taps taps) {
  if (small.size[0] > 1 && large.size[0] > 1)
    throw std::runtime_error(
        "jacobian_gram: small and large both have columns; on a GPU one of them must have 1");
  auto task = jacobian_tiles(small, large, variance, taps);
  const int64_t blocks = task.columns <= kPairs ? 1 : ceil_div(task.columns, kHalfPairs);
  const int64_t lists = task.samples * blocks * blocks;
  set_stack(task, std::min<int64_t>(task.columns, kPairs), lists);
  task.sums =
      workspace<SumOf<T>>(context, task.splits * task.samples * task.columns * task.columns);
  launch(context, jacobian_gram_kernel<T>, lists * task.splits, Square::threads, task);
  finish(context, task.sums, task.splits, out, update);
}

LAPKERNELS_INSTANCES(jacobian_gram)

}  // namespace lapkernels::cuda
