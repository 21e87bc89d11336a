// The main loop of all matrix-like kernels: tiles of C[row, col] = sum_k A[row, k] B[col, k], where
// A and B are views of strided tensors.
//
// A software pipeline: while one step is multiplied, the next is loaded from global memory to
// registers, and one warp computes the addresses of the step after it. Shared memory is
// double-buffered, so a step has one barrier. The order of additions depends on the sizes alone.
#pragma once

#include "../base/places.cuh"
#include "tile.cuh"

namespace lapkernels::cuda {

// The columns of the output Hessian's factor that are stacked in the lanes of a tile: the lane is
// (part, column), and the columns are first.. and, from the `half`-th on, second.. .
struct Stack {
  int size = 1, half = 1;
  int64_t first = 0, second = 0, count = 1;

  __device__ int64_t column(int c) const { return c < half ? first + c : second + (c - half); }
};

template <class Stored, class Shape>
struct Memory {
  struct Steps {
    Panel<Stored, Shape::rows> a[2];
    Panel<Stored, Shape::cols> b[2];
  };
  union alignas(32) {
    Steps steps;
    Result<SumOf<Stored>, Shape> result;
  };
  Place lanes_a[Shape::rows], lanes_b[Shape::cols];
  Place summands_a[2][kDepth], summands_b[2][kDepth];
};

// Places of the lanes of a tile, whose index `tile` counts in parts. The barrier is in `correlate`.
template <class T>
__device__ void place_lanes(Place* places, int lanes, const Operand<T>& operand, int64_t tile,
                            const Stack& stack) {
  const int parts = lanes / stack.size;
  for (int lane = threadIdx.x; lane < lanes; lane += blockDim.x) {
    const int part = lane / stack.size;
    const int64_t column = stack.column(lane - part * stack.size);
    const int64_t index = tile * parts + part;
    const bool exists = part < parts && column < stack.count;
    Place place = operand.lanes(exists ? index : operand.lanes.count);
    if (exists && operand.ones && index == operand.lanes.count) place.at[1] = kOnes;
    place.offset += column * operand.column_stride;
    places[lane] = place;
  }
}

// The elements of a step that one thread moves from global to shared memory: one by one, or, if the
// operand allows it, four by four.
template <class Stored, class T, int Lanes, int Threads>
struct Freight {
  static constexpr int count = Lanes * kDepth / Threads;
  static_assert(count % 4 == 0);
  Stored value[count];

  // Place of element `item` of the step, for reads of `width` elements.
  template <int width>
  __device__ static int lane(const Operand<T>& operand, int item) {
    return operand.lanes_nearer ? item % (Lanes / width) * width : item / (kDepth / width);
  }
  template <int width>
  __device__ static int summand(const Operand<T>& operand, int item) {
    return operand.lanes_nearer ? item / (Lanes / width) : item % (kDepth / width) * width;
  }

  __device__ static Stored stored(const Operand<T>& operand, T element) {
    if constexpr (std::is_same_v<Stored, SumOf<T>>) {
      const Stored wide = widen(element);
      return operand.square ? wide * wide : wide;
    } else {
      return element;
    }
  }

  __device__ void fetch(const Operand<T>& operand, const T* from, const Place* lanes,
                        const Place* summands) {
    if (operand.fours) {
#pragma unroll
      for (int i = 0; i < count / 4; ++i) {
        const int item = threadIdx.x + i * Threads;
        const Four<T> four = operand.fetch_four(from, lanes[lane<4>(operand, item)],
                                                summands[summand<4>(operand, item)]);
#pragma unroll
        for (int c = 0; c < 4; ++c) value[4 * i + c] = stored(operand, four.at[c]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int item = threadIdx.x + i * Threads;
        value[i] = stored(operand, operand.fetch(from, lanes[lane<1>(operand, item)],
                                                 summands[summand<1>(operand, item)]));
      }
    }
  }

  __device__ void store(const Operand<T>& operand, Panel<Stored, Lanes>& panel) const {
    if (operand.fours) {
#pragma unroll
      for (int i = 0; i < count / 4; ++i) {
        const int item = threadIdx.x + i * Threads;
        const int to = lane<4>(operand, item), k = summand<4>(operand, item);
        if (operand.lanes_nearer) {
          panel.data[k][to / 4] = {
              {value[4 * i], value[4 * i + 1], value[4 * i + 2], value[4 * i + 3]}};
        } else {
#pragma unroll
          for (int c = 0; c < 4; ++c) panel.at(k + c, to) = value[4 * i + c];
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int item = threadIdx.x + i * Threads;
        panel.at(summand<1>(operand, item), lane<1>(operand, item)) = value[i];
      }
    }
  }
};

// Runs of `length` summands each, from `first` on: tile += the sum of each, then after_run().
// Begins and ends with a barrier.
template <class T, class Stored, class Shape, class AfterRun>
__device__ void correlate(Tile<Stored, Shape>& tile, Memory<Stored, Shape>& memory,
                          const Operand<T>& a, const T* from_a, const Operand<T>& b,
                          const T* from_b, int64_t first, int64_t length, int64_t runs,
                          AfterRun after_run) {
  const int64_t chunks = (length + kDepth - 1) / kDepth;
  const int64_t steps = chunks * runs;
  int64_t ahead_chunk = 0, ahead_first = first;

  // The first threads compute the places of the next step, alternately of `a` and `b`.
  const auto place_step = [&](int buffer) {
    const int k = threadIdx.x % kDepth;
    const int64_t within = ahead_chunk * kDepth + k;
    if (threadIdx.x < kDepth)
      memory.summands_a[buffer][k] =
          a.summands(within < length ? ahead_first + within : a.summands.count);
    else if (threadIdx.x < 2 * kDepth)
      memory.summands_b[buffer][k] =
          b.summands(within < length ? ahead_first + within : b.summands.count);
    if (++ahead_chunk == chunks) {
      ahead_chunk = 0;
      ahead_first += length;
    }
  };
  Freight<Stored, T, Shape::rows, Shape::threads> freight_a;
  Freight<Stored, T, Shape::cols, Shape::threads> freight_b;
  const auto fetch = [&](int buffer) {
    freight_a.fetch(a, from_a, memory.lanes_a, memory.summands_a[buffer]);
    freight_b.fetch(b, from_b, memory.lanes_b, memory.summands_b[buffer]);
  };
  const auto store = [&](int buffer) {
    freight_a.store(a, memory.steps.a[buffer]);
    freight_b.store(b, memory.steps.b[buffer]);
  };

  // Step -1 only fills the first buffer; peeled off it would double the code of the loads.
  place_step(0);
  __syncthreads();
  int64_t chunk = 0;
#pragma unroll 1
  for (int64_t step = -1; step < steps; ++step) {
    const int now = step & 1;
    if (step + 1 < steps) fetch(now ^ 1);
    if (step + 2 < steps) place_step(now);
    if (step >= 0) {
      tile.multiply(memory.steps.a[now], memory.steps.b[now]);
      if (++chunk == chunks) {
        chunk = 0;
        after_run();
      }
    }
    if (step + 1 < steps) store(now ^ 1);
    __syncthreads();
  }
}

}  // namespace lapkernels::cuda
