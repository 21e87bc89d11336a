#include "finish.h"

#include "finish.cuh"
#include "../ops.h"

namespace lapkernels::cuda {

// All entries of a strided tensor in the order of its dimensions; the first has size one.
template <class T>
static Walk entries(const Grid<T>& grid) {
  Path path;
  for (int d = 0; d < 3; ++d) path.size[d] = grid.size[3 + d];
  Walk w = walk({grid.size[1], grid.stride[1]}, {grid.size[2], grid.stride[2]}, path);
  for (int d = 0; d < 3; ++d) w.stride[2 + d] = grid.stride[3 + d];
  return w;
}

template <class T>
void finish(const Context& context, const Parts<SumOf<T>>& parts, const Grid<T>& out, Update update,
            int64_t symmetric) {
  Finish<T> task{};
  task.partial = parts.data;
  task.runs = parts.squared ? parts.runs : parts.runs * parts.splits;
  task.splits = parts.squared ? parts.splits : 1;
  task.squared = parts.squared;
  task.out = out.data;
  task.to = entries(out);
  task.count = task.to.count;
  task.update = blend<T>(update);
  task.symmetric = symmetric;
  // The largest teams for which all elements fit the threads of a small GPU.
  constexpr int64_t kThreads = 1 << 16;
  task.team = 1;
  while (task.team < 32 && 2 * task.team <= task.runs && 2 * task.team * task.count <= kThreads)
    task.team *= 2;
  launch(context, finish_kernel<T>, ceil_div(task.count, kFinishThreads / task.team),
         kFinishThreads, task);
}

LAPKERNELS_INSTANCES(finish)

}  // namespace lapkernels::cuda
