// The interface of the CUDA kernels, without torch. Launches are asynchronous, on the context's
// stream.
#pragma once

#include <functional>

#include "../kernels.h"

namespace lapkernels::cuda {

// The bits of float16 and bfloat16; sums of them are kept in float32.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

struct Context {
  void* stream = nullptr;
  // Uninitialised device memory, alive until the kernels launched with this context are done.
  std::function<void*(int64_t bytes)> workspace;
};

template <class T>
using Kernels = KernelTable<T, Context>;

template <class T>
const Kernels<T>& kernels();

// Names of the ops that have kernels, separated by spaces.
const char* kernel_names();

// Why no kernel runs on the current device, in CUDA's words, or nothing: no code for its
// architecture, or a driver older than the runtime.
const char* why_not();

}  // namespace lapkernels::cuda
