// One pass over whole lists of parameters: updates, samples, and sums.
//
// A launch takes up to 64 parameters, cut into chunks of 4096 elements, one a block. Reads are
// coalesced, in vectors of four where a parameter is aligned. Sums of chunks are added in order, in
// double, by one block.
#pragma once

#include "base/numbers.cuh"

namespace lapkernels::cuda {

constexpr int kListThreads = 256, kEntries = 64;
constexpr int64_t kStretch = 4096;

template <class T>
struct Entry {
  T* out;
  const T *a, *b;
  int64_t size;
  bool fours;  // all are aligned to vectors
};

enum class ListWork { update, sample, divergence, squares };

template <class T>
struct Lists {
  ListWork work;
  int count;
  int first_block[kEntries];
  Entry<T> entry[kEntries];
  SumOf<T> p, q;  // decay, scale; prior, scale; 1 / prior variance, constant
  double* sums;   // of the chunks
};

// What is done to one element, and what it adds to the sum.
template <class T>
__device__ SumOf<T> list_step(ListWork work, SumOf<T> p, SumOf<T> q, T& out, T first, T second) {
  using S = SumOf<T>;
  const S a = widen(first), b = widen(second);
  switch (work) {
    case ListWork::update:
      Blend<T>{p, q}.write(out, a);
      return 0;
    case ListWork::sample:
      out = narrow<T>(a + q * widen(out) / sqrt(b + p));
      return 0;
    case ListWork::divergence:
      return (exp(2 * b) + a * a) * p - 2 * b + q;
    default:
      return exp(2 * b) * a * a;
  }
}

template <class T>
__global__ void __launch_bounds__(kListThreads, 1) list_kernel(const Lists<T> task) {
  using S = SumOf<T>;
  using Sums = double[kListThreads];
  LAPKERNELS_SHARED(Sums, sums);
  const int block = blockIdx.x;
  int which = 0;
  while (which + 1 < task.count && task.first_block[which + 1] <= block) ++which;
  const Entry<T>& entry = task.entry[which];
  const int64_t begin = (block - task.first_block[which]) * kStretch;
  const int64_t end = min(begin + kStretch, entry.size);
  S sum = 0;
  for (int64_t i = begin + 4 * threadIdx.x; i < end; i += 4 * kListThreads) {
    Four<T> out = {}, a = {}, b = {};
    const int count = static_cast<int>(min(int64_t(4), end - i));
    const bool vector = entry.fours && count == 4;
    if (vector) {
      a = four_at(entry.a + i);
      if (entry.b) b = four_at(entry.b + i);
      if (entry.out) out = four_at(entry.out + i);
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (c < count) {
          a.at[c] = entry.a[i + c];
          if (entry.b) b.at[c] = entry.b[i + c];
          if (entry.out) out.at[c] = entry.out[i + c];
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (c < count) sum += list_step<T>(task.work, task.p, task.q, out.at[c], a.at[c], b.at[c]);
    if (entry.out == nullptr) continue;
    if (vector) {
      four_at(entry.out + i) = out;
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (c < count) entry.out[i + c] = out.at[c];
    }
  }
  if (task.sums == nullptr) return;
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kListThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) task.sums[block] = sums[0];
}

template <class T>
struct ListTotal {
  const double* sums;
  int64_t count;
  T* out;
  double decay, scale;
};

// One block: each thread adds every 256th sum, then the threads' sums are added in a fixed tree.
template <class T>
__global__ void __launch_bounds__(kListThreads, 1) list_total_kernel(const ListTotal<T> task) {
  using Sums = double[kListThreads];
  LAPKERNELS_SHARED(Sums, sums);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < task.count; i += kListThreads) sum += task.sums[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kListThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const double old = task.decay == 0 ? 0.0 : task.decay * widen(*task.out);
  *task.out = narrow<T>(static_cast<SumOf<T>>(old + task.scale * sums[0]));
}

}  // namespace lapkernels::cuda
