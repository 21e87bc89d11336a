#include "pull.h"

#include "../ops.h"
#include "tile_choice.h"

namespace lapkernels::cuda {

template <class T>
static Walk position_walk(const Grid<T>& grid, const Path& at, int64_t columns, bool windows) {
  const Digit column{columns, grid.size[0] > 1 ? grid.stride[0] : 0};
  const Digit samples{grid.size[1], grid.stride[1]};
  return windows ? walk(column, {}, at, samples) : walk(column, samples, at);
}

template <class T>
Walk pull_walk(const Grid<T>& grid, int64_t columns, bool windows) {
  Path at;
  for (int d = 0; d < 3; ++d) at.size[d] = grid.size[3 + d];
  Walk w = position_walk(grid, at, columns, windows);
  for (int d = 0; d < 3; ++d) w.stride[2 + d] = grid.stride[3 + d];
  return w;
}

template <class T>
Pull<T> pull_task(const Grid<T>& out, Update update, const Grid<const T>& s,
                  const Grid<const T>& weight, const Taps& taps, bool transposed, bool windows) {
  Pull<T> task{};
  // The weight is [a, b / groups, k]; a convolution's input has channels b, a transposed one's a.
  const Digit a{weight.size[1] / taps.groups, weight.stride[1]};
  const Digit b{weight.size[2], weight.stride[2]};
  Path at, tap, own;
  for (int d = 0; d < 3; ++d) {
    at.size[d] = out.size[3 + d];
    at.step[d] = transposed ? taps.stride[d] : 1;
    tap.size[d] = own.size[d] = taps.kernel[d];
    tap.step[d] = transposed ? taps.dilation[d] : -taps.dilation[d];
    tap.start[d] = transposed ? -taps.padding[d] : taps.padding[d];
    own.step[d] = 1;
  }
  task.weight = operand(weight, walk(transposed ? a : b, {}, {}), walk(transposed ? b : a, {}, own),
                        kUndivided);
  task.weight.group_stride = a.size * a.stride;
  const Digit source{(transposed ? b : a).size, s.stride[2]};
  task.s = operand(s, position_walk(s, at, s.size[0], windows), walk(source, {}, tap),
                   transposed ? kUndivided : taps.stride);
  task.s.group_stride = source.size * source.stride;
  task.rows = task.weight.lanes.count;
  task.summands = task.weight.summands.count;
  task.groups = static_cast<int>(taps.groups);
  task.out = out.data;
  task.to = pull_walk(out, s.size[0], windows);
  task.channel_stride = out.stride[2];
  task.group_stride = task.rows * out.stride[2];
  task.update = blend<T>(update);
  return task;
}

template <class T, class Shape>
static void pull_in(const Context& context, Pull<T>& task) {
  set_fours(task.weight, 1, task.summands);
  set_fours(task.s, 1, task.summands);
  task.row_tiles = static_cast<int>(ceil_div(task.rows, Shape::rows));
  task.col_tiles = ceil_div(task.to.count, Shape::cols);
  launch(context, pull_kernel<T, Shape>, task.row_tiles * task.col_tiles * task.groups,
         Shape::threads, task);
}

template <class T>
void pull(const Context& context, Pull<T> task) {
  with_shape<T>(takes_narrow<T>(1, task.rows, 1, 1),
                [&]<class Shape>() { pull_in<T, Shape>(context, task); });
}

LAPKERNELS_INSTANCES(pull)
#define LAPKERNELS_PULL(T)                                                                       \
  template Pull<T> pull_task(const Grid<T>&, Update, const Grid<const T>&, const Grid<const T>&, \
                             const Taps&, bool, bool);                                           \
  template Walk pull_walk(const Grid<const T>&, int64_t, bool);
LAPKERNELS_PULL(float)
LAPKERNELS_PULL(double)
LAPKERNELS_PULL(Half)
LAPKERNELS_PULL(BFloat16)

}  // namespace lapkernels::cuda
