// Host side of pull.cuh.
#pragma once

#include "../base/launch.h"
#include "../base/operands.h"
#include "pull.cuh"

namespace lapkernels::cuda {

// The task for windows, whose samples are nearest in memory, or for images; the caller adds the
// factor. The layer's output is `s`, its input `out`.
template <class T>
Pull<T> pull_task(const Grid<T>& out, Update update, const Grid<const T>& s,
                  const Grid<const T>& weight, const Taps& taps, bool transposed, bool windows);

// A walk over the columns, samples and positions of a tensor of the input's shape.
template <class T>
Walk pull_walk(const Grid<T>& grid, int64_t columns, bool windows);

template <class T>
void pull(const Context& context, Pull<T> task);

}  // namespace lapkernels::cuda
