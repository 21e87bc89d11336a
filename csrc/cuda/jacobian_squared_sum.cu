// D[a, b, k] = sum_{n, v} G_{n,v}[a, b, k]^2: a run of the tile sum is one sample and column, or as
// many columns as fit in a tile beside the channels.
#include "ops.h"
#include "product/tile_sum.h"

namespace lapkernels::cuda {

template <class T>
void jacobian_squared_sum(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                          Grid<const T> large, Taps taps) {
  const int64_t columns = std::max(small.size[0], large.size[0]);
  const int64_t rows = small.size[2] / taps.groups;
  const int64_t cols = large.size[2] / taps.groups * tap_count(taps);
  // A divisor of the columns, so that a run has no empty part.
  const auto stacked = [&](int64_t lanes, int64_t side) {
    int64_t size = stack_size(columns, lanes, side);
    while (columns % size) --size;
    return static_cast<int>(size);
  };
  TileSum<T> task{};
  task.stack_a = task.stack_b = 1;
  bool narrow = takes_narrow<T>(1, rows, 1, 1);
  if (large.size[0] == 1) {
    const int in_narrow = stacked(rows, Narrow::rows), in_square = stacked(rows, Square::rows);
    narrow = takes_narrow<T>(columns, rows, in_narrow, in_square);
    task.stack_a = narrow ? in_narrow : in_square;
  } else if (small.size[0] == 1) {
    task.stack_b = stacked(cols, Square::cols);
  }
  const int64_t stack = std::max(task.stack_a, task.stack_b);
  const Columns walked{columns / stack, stack};
  task.a = plain_operand(small, taps.groups, walked);
  task.b = patch_operand(large, taps, small.size + 3, false, walked);
  task.squared = true;
  task.length = position_count(small);
  task.runs = walked.blocks * small.size[1];
  tile_sum<T>(context, task, narrow, taps.groups, out, update);
}

LAPKERNELS_INSTANCES(jacobian_squared_sum)

}  // namespace lapkernels::cuda
