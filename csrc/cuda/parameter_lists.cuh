// One pass over whole lists of parameters: updates, samples, and sums.
//
// A launch takes up to 64 parameters, cut into stretches of 4096 elements, one a block;
// neighbouring threads have neighbouring elements. Sums of stretches are added in order, in double,
// by one block.
#pragma once

#include "numbers.cuh"

namespace lapkernels::cuda {

constexpr int kListThreads = 256, kEntries = 64;
constexpr int64_t kStretch = 4096;

template <class T>
struct Entry {
  T* out;
  const T *a, *b;
  int64_t size;
};

enum class ListWork { update, sample, divergence, squares };

template <class T>
struct Lists {
  ListWork work;
  int count;
  int first_block[kEntries];
  Entry<T> entry[kEntries];
  SumOf<T> p, q;  // decay, scale; prior, scale; 1 / prior variance, constant
  double* sums;   // of the stretches
};

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
  const S p = task.p, q = task.q;
  S sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kListThreads) {
    const S a = widen(entry.a[i]);
    switch (task.work) {
      case ListWork::update:
        Blend<T>{p, q}.write(entry.out[i], a);
        break;
      case ListWork::sample:
        entry.out[i] = narrow<T>(a + q * widen(entry.out[i]) / sqrt(S(widen(entry.b[i])) + p));
        break;
      case ListWork::divergence: {
        const S log_sigma = widen(entry.b[i]);
        sum += (exp(2 * log_sigma) + a * a) * p - 2 * log_sigma + q;
        break;
      }
      case ListWork::squares:
        sum += exp(2 * S(widen(entry.b[i]))) * a * a;
        break;
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
