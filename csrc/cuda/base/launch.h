// Launches of kernels, on a GPU or emulated.
#pragma once

#include <limits>
#include <stdexcept>
#include <string>

#include "../kernels.h"
#include "platform.cuh"

namespace lapkernels::cuda {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Runs kernel(task) on so many blocks, asynchronously: only errors of the launch itself are raised.
template <class Task>
void launch(const Context& context, void (*kernel)(Task), int64_t blocks, int threads,
            const std::type_identity_t<Task>& task) {
  if (blocks > std::numeric_limits<int32_t>::max())
    throw std::runtime_error("too many blocks for one CUDA launch: use smaller batches");
#ifdef __CUDACC__
  kernel<<<static_cast<unsigned>(blocks), threads, 0, static_cast<cudaStream_t>(context.stream)>>>(
      task);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("a CUDA kernel was not launched: ") +
                             cudaGetErrorString(error));
#else
  emulator::run(reinterpret_cast<void*>(kernel), static_cast<int>(blocks), threads,
                [&] { kernel(task); });
#endif
}

template <class T>
T* workspace(const Context& context, int64_t count) {
  return static_cast<T*>(context.workspace(count * static_cast<int64_t>(sizeof(T))));
}

}  // namespace lapkernels::cuda
