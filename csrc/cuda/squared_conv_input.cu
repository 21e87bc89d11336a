// m_in[i, u] = phi'(z[i, u])² sum_{o, t} m_out[o, t] W[o, i, k]².
#include "ops.h"
#include "product/pull.h"

namespace lapkernels::cuda {

template <class T>
void squared_conv_input(const Context& context, Grid<T> out, Update update, Grid<const T> m,
                        Grid<const T> weight, Taps taps, bool transposed, Grid<const T> z,
                        Activation activation, double slope) {
  auto task = pull_task(out, update, m, weight, taps, transposed, false);
  task.weight.square = true;
  if (activation != Activation::identity) {
    task.factor = z.data;
    task.factor_at = pull_walk(z, 1, false);
    task.factor_channel_stride = z.stride[2];
    task.factor_group_stride = task.rows * z.stride[2];
    task.slopes = true;
    task.activation = activation;
    task.slope = static_cast<SumOf<T>>(slope);
  }
  pull(context, task);
}

LAPKERNELS_INSTANCES(squared_conv_input)

}  // namespace lapkernels::cuda
