// Host side of tile_sum.cuh.
#pragma once

#include "finish.h"
#include "tile_sum.cuh"

namespace lapkernels::cuda {

// out <- decay * out + scale * C, elements being kept as `Stored` in shared memory. The caller
// fills in the operands, the stacks, length, runs and what to do; the rest is worked out here.
template <class Stored, class T, class Out>
void tile_sum(const Context& context, TileSum<T> task, int64_t groups, const Grid<Out>& out,
              Update update);

// The number of columns to stack in a tile's lanes where `lanes` are in use: a divisor of
// `columns`.
inline int64_t stack_size(int64_t columns, int64_t lanes) {
  int64_t size = std::min(columns, std::max<int64_t>(1, Square::rows / lanes));
  while (columns % size) --size;
  return size;
}

inline int64_t tap_count(const Taps& taps) {
  return taps.kernel[0] * taps.kernel[1] * taps.kernel[2];
}

template <class T>
int64_t position_count(const Grid<T>& grid) {
  return grid.size[3] * grid.size[4] * grid.size[5];
}

}  // namespace lapkernels::cuda
