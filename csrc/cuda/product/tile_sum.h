// Host side of tile_sum.cuh.
#pragma once

#include "finish.h"
#include "tile_choice.h"
#include "tile_sum.cuh"

namespace lapkernels::cuda {

// out <- decay * out + scale * C, elements being kept as `Stored` in shared memory. The caller
// fills in the operands, the stacks, length, runs and what to do; the rest is worked out here.
template <class Stored, class T, class Out>
void tile_sum(const Context& context, TileSum<T> task, bool narrow, int64_t groups,
              const Grid<Out>& out, Update update);

inline int64_t tap_count(const Taps& taps) {
  return taps.kernel[0] * taps.kernel[1] * taps.kernel[2];
}

template <class T>
int64_t position_count(const Grid<T>& grid) {
  return grid.size[3] * grid.size[4] * grid.size[5];
}

}  // namespace lapkernels::cuda
