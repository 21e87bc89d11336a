// out[v, b, u, l] = f[b, u, l] sum_{a,k,t} W[a, b, k] s[v, a, t, l] for windows; the lanes l are
// contiguous, in memory and so in a tile's positions.
#include "ops.h"
#include "product/pull.h"

namespace lapkernels::cuda {

template <class T>
void window_pull(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                 Grid<const T> weight, Taps taps, bool transposed, Grid<const T> factor) {
  auto task = pull_task(out, update, s, weight, taps, transposed, true);
  if (factor.data) {
    task.factor = factor.data;
    task.factor_at = pull_walk(factor, s.size[0], true);
    task.factor_channel_stride = factor.stride[2];
    task.factor_group_stride = task.rows * factor.stride[2];
  }
  pull(context, task);
}

LAPKERNELS_INSTANCES(window_pull)

}  // namespace lapkernels::cuda
