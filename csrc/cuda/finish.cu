#include "finish.h"

#include "finish.cuh"
#include "ops.h"

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
void finish(const Context& context, const SumOf<T>* partial, int64_t splits, const Grid<T>& out,
            Update update, int64_t symmetric) {
  Finish<T> task{partial, splits, 0, out.data, entries(out), blend<T>(update), symmetric};
  task.count = task.to.count;
  launch(context, finish_kernel<T>, ceil_div(task.count, kFinishThreads), kFinishThreads, task);
}

LAPKERNELS_INSTANCES(finish)

}  // namespace lapkernels::cuda
