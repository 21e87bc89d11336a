// The kernels for a tensor's device and dtype, and the registration for each device.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <atomic>
#include <vector>

#include "../cpu/kernels.h"
#include "../cuda/kernels.h"

// Tests register CUDA kernels that run emulated on the CPU, under another name.
#ifndef LAPKERNELS_LIBRARY
#define LAPKERNELS_LIBRARY lapkernels_native
#endif
#define LAPKERNELS_REGISTER(device, name)                          \
  STABLE_TORCH_LIBRARY_IMPL(LAPKERNELS_LIBRARY, device, library) { \
    library.impl(#name, TORCH_BOX(&name));                         \
  }
#ifdef LAPKERNELS_WITH_CUDA
#define LAPKERNELS_KERNEL(name)  \
  LAPKERNELS_REGISTER(CPU, name) \
  LAPKERNELS_REGISTER(CUDA, name)
#else
#define LAPKERNELS_KERNEL(name) LAPKERNELS_REGISTER(CPU, name)
#endif

namespace lapkernels {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Dynamic scheduling: a free thread takes the next task, as tasks differ in size.
inline Context torch_context() {
  return {[](int64_t tasks, const Body& body) {
            const int64_t threads = torch::stable::get_num_threads();
            std::atomic<int64_t> next{0};
            torch::stable::parallel_for(0, std::min(tasks, threads), 1,
                                        [&](int64_t begin, int64_t end) {
                                          for (int64_t hand = begin; hand < end; ++hand)
                                            for (int64_t task; (task = next.fetch_add(1)) < tasks;)
                                              body(task);
                                        });
          },
          static_cast<int64_t>(torch::stable::get_num_threads())};
}

// Whether there are kernels for the tensor's dtype: half precision is for GPUs.
inline bool has_kernels(const Tensor& tensor) {
  const ScalarType type = tensor.scalar_type();
  if (type == ScalarType::Float || type == ScalarType::Double) return true;
#ifndef LAPKERNELS_EMULATED
  if (tensor.is_cpu()) return false;
#endif
  return type == ScalarType::Half || type == ScalarType::BFloat16;
}

#if defined(LAPKERNELS_WITH_CUDA) || defined(LAPKERNELS_EMULATED)
#ifdef LAPKERNELS_WITH_CUDA
// Looked up when it is needed, so that the library loads with a torch that has no CUDA.
void* current_cuda_stream(int32_t device);
#endif

// Calls body.template operator()<T>(kernels, context) with the CUDA kernels. Their workspace comes
// from torch's caching allocator, which reuses it in stream order.
template <class Body>
void with_cuda_kernels(const Tensor& like, Body body) {
  std::vector<Tensor> kept;
  cuda::Context context;
  context.workspace = [&](int64_t bytes) -> void* {
    kept.push_back(torch::stable::new_empty(like, {bytes}, ScalarType::Byte));
#ifdef LAPKERNELS_EMULATED
    // NaN, so that tests find reads of uninitialised memory.
    std::memset(kept.back().data_ptr(), 0xff, bytes);
#endif
    return kept.back().data_ptr();
  };
#ifdef LAPKERNELS_WITH_CUDA
  const torch::stable::accelerator::DeviceGuard guard(like.get_device_index());
  context.stream = current_cuda_stream(like.get_device_index());
#endif
  switch (like.scalar_type()) {
    case ScalarType::Float:
      return body.template operator()<float>(cuda::kernels<float>(), context);
    case ScalarType::Double:
      return body.template operator()<double>(cuda::kernels<double>(), context);
    case ScalarType::Half:
      return body.template operator()<cuda::Half>(cuda::kernels<cuda::Half>(), context);
    default:
      return body.template operator()<cuda::BFloat16>(cuda::kernels<cuda::BFloat16>(), context);
  }
}
#endif

// Calls body.template operator()<T>(kernels, context) for the tensor's device and dtype; on a CPU
// with kernels for work on so many lanes.
template <class Body>
void with_kernels(const Tensor& like, Body body, int64_t lanes = 0) {
#if defined(LAPKERNELS_EMULATED)
  with_cuda_kernels(like, body);
#else
#if defined(LAPKERNELS_WITH_CUDA)
  if (!like.is_cpu()) return with_cuda_kernels(like, body);
#endif
  if (like.scalar_type() == ScalarType::Float)
    body.template operator()<float>(kernels<float>(lanes), torch_context());
  else
    body.template operator()<double>(kernels<double>(lanes), torch_context());
#endif
}

}  // namespace lapkernels
