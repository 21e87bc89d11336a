// sums[r, g, lane] = sum_t X_r[g, lane, t] for r = (column, sample), for factors with `reduce`. One
// thread an entry, neighbours on neighbouring lanes; each element is read once a tap.
#pragma once

#include "../base/places.cuh"

namespace lapkernels::cuda {

template <class T>
struct PositionSums {
  Operand<T> x;
  int64_t rows, positions, lanes;  // lanes of a group, that of ones included
  int groups;
  SumOf<T>* sums;  // [rows, groups, lanes]
};

constexpr int kPositionThreads = 128;

template <class T>
__global__ void __launch_bounds__(kPositionThreads)
    position_sums_kernel(const PositionSums<T> task) {
  const int64_t index = int64_t(blockIdx.x) * kPositionThreads + threadIdx.x;
  const int64_t lane = index % task.lanes, rest = index / task.lanes;
  const int64_t group = rest % task.groups, row = rest / task.groups;
  if (row >= task.rows) return;
  Place place = task.x.lanes(lane);
  if (lane == task.x.lanes.count) place.at[1] = kOnes;
  const T* from = task.x.data + group * task.x.group_stride;
  SumOf<T> sum = 0;
  for (int64_t t = 0; t < task.positions; ++t)
    sum += widen(task.x.fetch(from, place, task.x.summands(row * task.positions + t)));
  task.sums[index] = sum;
}

}  // namespace lapkernels::cuda
