// Where the elements of a matrix factor lie in a strided tensor.
//
// Every op here multiplies two matrices that exist only as views, A[lane, summand] and
// B[lane, summand], summed over the summands. An element's memory offset and its coordinates on the
// tensor's grid are the sums of one part for the lane and one for the summand; outside of the grid
// it is zero. Parts are computed once a tile, so an element costs three comparisons.
#pragma once

#include "numbers.cuh"

namespace lapkernels::cuda {

// Division of n < 2^31 by a fixed size: one multiplication and a shift.
struct Divider {
  uint32_t size, multiplier, shift;

  __device__ uint32_t operator()(uint32_t n) const {
    const uint32_t high = static_cast<uint32_t>((static_cast<uint64_t>(multiplier) * n) >> 32);
    return (high + n) >> shift;
  }
};

// A part of an element's place.
struct Place {
  int64_t offset;
  int32_t at[3];
};

// Added to any coordinate these are outside of every grid, whose sides are below 2^29.
constexpr int32_t kOutside = -(1 << 30);  // at[0] of a lane or summand that does not exist
constexpr int32_t kOnes = 1 << 30;        // at[1] of a lane whose elements are all one

// From a flat index to a part of a place. The digits, slowest first, are outer, inner, z, y, x and
// fast; z, y and x are spatial.
struct Walk {
  int64_t count, origin;
  Divider size[5];    // of inner, z, y, x, fast
  int64_t stride[6];  // in memory
  int32_t start[3], step[3];

  __device__ Place operator()(int64_t index) const {
    Place place{origin, {start[0], start[1], start[2]}};
    if (index >= count) {
      place.at[0] = kOutside;
      return place;
    }
    if (count <= INT32_MAX) {
      uint32_t rest = static_cast<uint32_t>(index);
#pragma unroll
      for (int d = 5; d > 0; --d) {
        const uint32_t above = size[d - 1](rest);
        add(place, d, rest - above * size[d - 1].size);
        rest = above;
      }
      add(place, 0, rest);
    } else {
      int64_t rest = index;
#pragma unroll 1
      for (int d = 5; d > 0; --d) {
        const int64_t above = rest / size[d - 1].size;
        add(place, d, rest - above * size[d - 1].size);
        rest = above;
      }
      add(place, 0, rest);
    }
    return place;
  }

  __device__ void add(Place& place, int d, int64_t digit) const {
    place.offset += digit * stride[d];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis)
      if (d == axis + 2) place.at[axis] += static_cast<int32_t>(digit) * step[axis];
  }
};

// One of the two matrix factors.
template <class T>
struct Operand {
  const T* data;
  int64_t group_stride, column_stride;
  Walk lanes, summands;
  int32_t size[3];    // of the grid
  bool divided;       // coordinates are multiples of `step`, or the element is zero
  bool square;        // elements enter squared
  bool ones;          // a last lane of ones follows the others
  bool lanes_nearer;  // in memory neighbouring lanes are nearer than neighbouring summands
  bool fours;         // of the nearer ones each four are a vector in memory, or all zero
  Divider step[3];
  int64_t unit[3];  // memory strides of the grid, if divided

  // The element, `from` being the data of the group.
  __device__ T fetch(const T* from, const Place& lane, const Place& summand) const {
    int64_t offset = lane.offset + summand.offset;
    int32_t q[3];
#pragma unroll
    for (int d = 0; d < 3; ++d) q[d] = lane.at[d] + summand.at[d];
    if (divided) {
#pragma unroll
      for (int d = 0; d < 3; ++d) {
        const uint32_t whole = step[d](q[d] < 0 ? 0 : q[d]);
        q[d] =
            static_cast<int32_t>(whole * step[d].size) == q[d] ? static_cast<int32_t>(whole) : -1;
        offset += q[d] * unit[d];
      }
    }
    return inside(q) ? from[offset] : beyond(lane, summand);
  }

  // Four elements from this one on, if `fours` is set.
  __device__ Four<T> fetch_four(const T* from, const Place& lane, const Place& summand) const {
    const int32_t q[3] = {lane.at[0] + summand.at[0], lane.at[1] + summand.at[1],
                          lane.at[2] + summand.at[2]};
    if (inside(q)) return four_at(from + lane.offset + summand.offset);
    const T element = beyond(lane, summand);
    return {{element, element, element, element}};
  }

  __device__ bool inside(const int32_t q[3]) const {
    return static_cast<uint32_t>(q[0]) < static_cast<uint32_t>(size[0]) &&
           static_cast<uint32_t>(q[1]) < static_cast<uint32_t>(size[1]) &&
           static_cast<uint32_t>(q[2]) < static_cast<uint32_t>(size[2]);
  }

  // What is not on the grid.
  __device__ T beyond(const Place& lane, const Place& summand) const {
    const bool one = lane.at[1] == kOnes && summand.at[0] != kOutside;
    return narrow<T>(one ? 1 : 0);
  }
};

}  // namespace lapkernels::cuda
