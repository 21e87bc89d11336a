// D[a, b, k] = sum_{n, v} G_{n,v}[a, b, k]^2: a run of the tile sum is one sample and column, or as
// many columns as fit in a tile beside the channels.
#include "ops.h"
#include "tile_sum.h"

namespace lapkernels::cuda {

template <class T>
void jacobian_squared_sum(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                          Grid<const T> large, Taps taps) {
  const int64_t columns = std::max(small.size[0], large.size[0]);
  TileSum<T> task{};
  task.stack_a = task.stack_b = 1;
  if (large.size[0] == 1)
    task.stack_a = static_cast<int>(stack_size(columns, small.size[2] / taps.groups));
  else if (small.size[0] == 1)
    task.stack_b =
        static_cast<int>(stack_size(columns, large.size[2] / taps.groups * tap_count(taps)));
  const int64_t stack = std::max(task.stack_a, task.stack_b);
  const Columns walked{columns / stack, stack};
  task.a = plain_operand(small, taps.groups, walked);
  task.b = patch_operand(large, taps, small.size + 3, false, walked);
  task.squared = true;
  task.length = position_count(small);
  task.runs = walked.blocks * small.size[1];
  tile_sum<T>(context, task, taps.groups, out, update);
}

LAPKERNELS_INSTANCES(jacobian_squared_sum)

}  // namespace lapkernels::cuda
