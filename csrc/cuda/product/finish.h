// Host side of the second pass of split sums.
#pragma once

#include "../base/launch.h"
#include "../base/operands.h"

namespace lapkernels::cuda {

// Partial sums [runs, splits, entries]: those of a run are added, and, if `squared`, squared.
template <class S>
struct Parts {
  const S* data;
  int64_t splits, runs = 1;
  bool squared = false;
};

// out <- decay * out + scale * the sum of all parts. `symmetric`: the side of square matrices of
// which only the upper half was summed, or 0.
template <class T>
void finish(const Context& context, const Parts<SumOf<T>>& parts, const Grid<T>& out, Update update,
            int64_t symmetric = 0);

// The number of parts of `work`, for about 512 blocks whatever the GPU: the order of additions, and
// so every bit of the result, is the same on all GPUs.
inline int64_t split_count(int64_t tiles, int64_t work) {
  constexpr int64_t kBlocks = 512;
  return std::max<int64_t>(1, std::min(work, ceil_div(kBlocks, tiles)));
}

}  // namespace lapkernels::cuda
