// Host side: the matrix factors of the kernels from tensors and taps.
#pragma once

#include <cstdlib>
#include <stdexcept>

#include "places.cuh"

namespace lapkernels::cuda {

// A digit of a walk over an axis that is not spatial.
struct Digit {
  int64_t size = 1, stride = 0;
};

// The digits z, y and x of a walk: coordinate = start + step * digit.
struct Path {
  int64_t size[3] = {1, 1, 1}, step[3] = {0, 0, 0}, start[3] = {0, 0, 0};
};

inline Divider divider(int64_t size) {
  if (size < 1 || size > INT32_MAX)
    throw std::runtime_error("a size is beyond the CUDA kernels' reach: " + std::to_string(size));
  uint32_t shift = 0;
  while ((int64_t(1) << shift) < size) ++shift;
  const uint64_t excess = (uint64_t(1) << shift) - size;
  return {static_cast<uint32_t>(size), static_cast<uint32_t>((excess << 32) / size + 1), shift};
}

inline Walk walk(Digit outer, Digit inner, const Path& path, Digit fast = {}) {
  Walk w{};
  const int64_t size[5] = {inner.size, path.size[0], path.size[1], path.size[2], fast.size};
  w.count = outer.size;
  for (int d = 0; d < 5; ++d) {
    w.count *= size[d];
    w.size[d] = divider(size[d]);
  }
  w.stride[0] = outer.stride;
  w.stride[1] = inner.stride;
  w.stride[5] = fast.stride;
  for (int d = 0; d < 3; ++d) {
    const int64_t last = path.start[d] + path.step[d] * (path.size[d] - 1);
    constexpr int64_t kFar = int64_t(1) << 28;
    if (std::abs(path.start[d]) > kFar || std::abs(last) > kFar)
      throw std::runtime_error("a position is beyond the CUDA kernels' reach: " +
                               std::to_string(last));
    w.start[d] = static_cast<int32_t>(path.start[d]);
    w.step[d] = static_cast<int32_t>(path.step[d]);
  }
  return w;
}

// Memory stride of the fastest digit.
inline int64_t nearest(const Walk& w, const int64_t unit[3]) {
  for (int d = 5; d > 0; --d)
    if (w.size[d - 1].size > 1)
      return std::abs(d >= 2 && d <= 4 ? w.step[d - 2] * unit[d - 2] : w.stride[d]);
  return std::abs(w.stride[0]);
}

// The factor whose element (lane, summand) is the grid's entry at the sum of both coordinates, or
// at that sum divided by `divide`, and zero where there is none.
template <class T>
Operand<T> operand(const Grid<const T>& grid, const Walk& lanes, const Walk& summands,
                   const int64_t divide[3]) {
  Operand<T> o{};
  o.data = grid.data;
  o.lanes = lanes;
  o.summands = summands;
  for (int d = 0; d < 3; ++d) {
    o.size[d] = static_cast<int32_t>(divider(grid.size[3 + d]).size);
    o.step[d] = divider(divide[d]);
    o.unit[d] = grid.stride[3 + d];
    o.divided = o.divided || divide[d] > 1;
  }
  o.lanes_nearer = nearest(lanes, o.unit) < nearest(summands, o.unit);
  for (Walk* w : {&o.lanes, &o.summands})
    for (int d = 0; d < 3 && !o.divided; ++d) {
      w->stride[2 + d] = w->step[d] * o.unit[d];
      w->origin += w->start[d] * o.unit[d];
    }
  return o;
}

constexpr int64_t kUndivided[3] = {1, 1, 1};

inline int64_t digit_size(const Walk& w, int d) {
  if (d > 0) return w.size[d - 1].size;
  int64_t rest = w.count;
  for (const Divider& by : w.size) rest /= by.size;
  return rest;
}

// Sets whether the operand is read in vectors of four: each aligned four of the faster of lanes and
// summands must be contiguous and aligned in memory, and wholly inside or outside of the grid. Its
// lanes hold `stack` columns; runs of `run` summands begin anywhere that is a multiple of it.
template <class T>
void set_fours(Operand<T>& o, int64_t stack, int64_t run) {
  const Walk& near = o.lanes_nearer ? o.lanes : o.summands;
  const Walk& far = o.lanes_nearer ? o.summands : o.lanes;
  int fast = 5;
  while (fast > 0 && digit_size(near, fast) == 1) --fast;
  const int64_t length = digit_size(near, fast);
  o.fours = !o.divided && near.stride[fast] == 1 && length % 4 == 0 &&
            (o.lanes_nearer ? stack == 1 && !o.ones : run % 4 == 0) && is_vector(o.data) &&
            (near.origin + far.origin) % 4 == 0 && o.group_stride % 4 == 0 &&
            o.column_stride % 4 == 0;
  if (fast >= 2 && fast <= 4) {
    const int axis = fast - 2;
    const int64_t first = near.start[axis] + far.start[axis];
    o.fours = o.fours && near.step[axis] == 1 && digit_size(far, fast) == 1 && first >= 0 &&
              first + length <= o.size[axis];
  }
  for (int d = 0; d <= 5; ++d)
    for (const Walk* w : {&near, &far})
      if (!(w == &near && d == fast) && digit_size(*w, d) > 1 && w->stride[d] % 4 != 0)
        o.fours = false;
}

// The columns' share of the walk over summands.
struct Columns {
  int64_t blocks = 1, size = 1;
};

template <class T>
Digit channels(const Grid<T>& grid, int64_t groups) {
  return {grid.size[2] / groups, grid.stride[2]};
}

template <class T>
Digit column_digit(const Grid<T>& grid, Columns columns) {
  return {columns.blocks, grid.size[0] > 1 ? grid.stride[0] * columns.size : 0};
}

template <class T>
void set_groups(Operand<T>& o, const Grid<const T>& grid, int64_t groups) {
  o.group_stride = grid.size[2] / groups * grid.stride[2];
  o.column_stride = grid.size[0] > 1 ? grid.stride[0] : 0;
}

// Lanes: channels. Summands: columns, samples and positions.
template <class T>
Operand<T> plain_operand(const Grid<const T>& grid, int64_t groups, Columns columns) {
  Path at;
  Digit flat;
  bool follow = true;
  for (int d = 2; d >= 0; --d) {
    const int64_t size = grid.size[3 + d], stride = grid.stride[3 + d];
    at.size[d] = size;
    at.step[d] = 1;
    if (size == 1) continue;
    follow = follow && (flat.size == 1 || stride == flat.size * flat.stride);
    flat = {flat.size * size, flat.size == 1 ? stride : flat.stride};
  }
  const Digit samples{grid.size[1], grid.stride[1]}, column = column_digit(grid, columns);
  // Contiguous positions are one digit, not spatial.
  auto o =
      operand(grid, walk(channels(grid, groups), {}, {}),
              follow ? walk(column, samples, {}, flat) : walk(column, samples, at), kUndivided);
  set_groups(o, grid, groups);
  return o;
}

// Lanes: channels and taps, the rows of the unfolded grid. Summands: columns, samples and
// `positions`. Element at position * stride - padding + k * dilation; of a transposed layer, at
// (position + padding - k * dilation) / stride.
template <class T>
Operand<T> patch_operand(const Grid<const T>& grid, const Taps& taps, const int64_t positions[3],
                         bool transposed, Columns columns) {
  Path tap, at;
  for (int d = 0; d < 3; ++d) {
    tap.size[d] = taps.kernel[d];
    tap.step[d] = transposed ? -taps.dilation[d] : taps.dilation[d];
    tap.start[d] = transposed ? taps.padding[d] : -taps.padding[d];
    at.size[d] = positions[d];
    at.step[d] = transposed ? 1 : taps.stride[d];
  }
  const Digit samples{grid.size[1], grid.stride[1]};
  auto o = operand(grid, walk(channels(grid, taps.groups), {}, tap),
                   walk(column_digit(grid, columns), samples, at),
                   transposed ? taps.stride : kUndivided);
  set_groups(o, grid, taps.groups);
  return o;
}

}  // namespace lapkernels::cuda
