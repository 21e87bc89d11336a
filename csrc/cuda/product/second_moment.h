// Host side of both Kronecker factors: sum over summands of x xᵀ, or of (sum_t x)(sum_t x)ᵀ.
#pragma once

#include "tile_sum.h"

namespace lapkernels::cuda {

// `rows` of `positions` summands each; the factor [groups, lanes, lanes] has a last lane of ones if
// x.ones says so.
template <class T>
void second_moment(const Context& context, const Operand<T>& x, int64_t groups, int64_t rows,
                   int64_t positions, bool reduce, const Grid<T>& out, Update update);

}  // namespace lapkernels::cuda
