// D[a, b, k] = sum_n sum_t small[n, a, t] large[n, b, t, k]^2, or with the square on the other one:
// one product over all samples and positions; factors are squared when stored to shared memory.
#include "ops.h"
#include "product/tile_sum.h"

namespace lapkernels::cuda {

template <class T>
void squared_conv_weight(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                         Grid<const T> large, Taps taps, bool square_small) {
  TileSum<T> task{};
  task.stack_a = task.stack_b = 1;
  const Columns columns{std::max(small.size[0], large.size[0]), 1};
  task.a = plain_operand(small, taps.groups, columns);
  task.b = patch_operand(large, taps, small.size + 3, false, columns);
  task.runs = 1;
  (square_small ? task.a : task.b).square = true;
  task.length = columns.blocks * small.size[1] * position_count(small);
  // float16 would round the squares.
  const bool narrow = takes_narrow<T>(1, task.a.lanes.count, 1, 1);
  tile_sum<SumOf<T>>(context, task, narrow, taps.groups, out, update);
}

LAPKERNELS_INSTANCES(squared_conv_weight)

}  // namespace lapkernels::cuda
