// B = sum_{n,v} sum_t s_{n,v,t} s_{n,v,t}ᵀ.
#include "ops.h"
#include "product/second_moment.h"

namespace lapkernels::cuda {

template <class T>
void kronecker_output(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                      int64_t groups, bool reduce) {
  const auto columns = plain_operand(s, groups, {s.size[0], 1});
  second_moment(context, columns, groups, s.size[0] * s.size[1], position_count(s), reduce, out,
                update);
}

LAPKERNELS_INSTANCES(kronecker_output)

}  // namespace lapkernels::cuda
