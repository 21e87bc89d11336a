// Host side of tile.cuh: which tile a product takes, and how columns fill it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "../base/launch.h"
#include "tile.cuh"

namespace lapkernels::cuda {

// In double the narrow tile would spill registers.
template <class T>
constexpr bool kHasNarrow = !std::is_same_v<T, double>;

// Calls body.template operator()<Shape>() for the chosen tile.
template <class T, class Body>
void with_shape(bool narrow, Body body) {
  if constexpr (kHasNarrow<T>)
    if (narrow) return body.template operator()<Narrow>();
  body.template operator()<Square>();
}

// Whether to use the narrow tile for `columns` columns of `lanes` rows each, given how many would
// be stacked in a narrow and in a square tile: it must save a third of the products.
template <class T>
bool takes_narrow(int64_t columns, int64_t lanes, int64_t in_narrow, int64_t in_square) {
  const auto rows = [&](int64_t side, int64_t stack) {
    return ceil_div(columns, stack) * ceil_div(lanes, side / stack) * side;
  };
  return kHasNarrow<T> && 3 * rows(Narrow::rows, in_narrow) < 2 * rows(Square::rows, in_square);
}

// The number of columns to stack in a tile's lanes, each of which needs `lanes`.
inline int64_t stack_size(int64_t columns, int64_t lanes, int64_t side) {
  return std::min(columns, std::max<int64_t>(1, side / lanes));
}

}  // namespace lapkernels::cuda
