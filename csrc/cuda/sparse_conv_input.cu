// out[v, n, i, u] = sum_{o, t} W[o, i, k] s[v, n, o, t] for columns that share zeros. A GPU
// multiplies these too: a tile that skipped them would leave most of its threads idle.
#include "ops.h"
#include "product/pull.h"

namespace lapkernels::cuda {

template <class T>
void sparse_conv_input(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                       Grid<const T> weight, Taps taps) {
  pull(context, pull_task(out, update, s, weight, taps, false, false));
}

LAPKERNELS_INSTANCES(sparse_conv_input)

}  // namespace lapkernels::cuda
