// A = sum_n sum_t x_{n,t} x_{n,t}ᵀ of the unfolded input's columns, which are never formed.
#include "ops.h"
#include "product/second_moment.h"

namespace lapkernels::cuda {

template <class T>
void kronecker_input(const Context& context, Grid<T> out, Update update, Grid<const T> x,
                     const int64_t output_size[3], Taps taps, bool transposed, bool reduce,
                     bool bias) {
  const int64_t positions = output_size[0] * output_size[1] * output_size[2];
  if (positions == 0) return finish<T>(context, {nullptr, 0}, out, update);
  auto patches = patch_operand(x, taps, output_size, transposed, {});
  patches.ones = bias;
  second_moment(context, patches, taps.groups, x.size[1], positions, reduce, out, update);
}

LAPKERNELS_INSTANCES(kronecker_input)

}  // namespace lapkernels::cuda
