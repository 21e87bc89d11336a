// Facts about the library.
#include <string>

#include "devices.h"

#ifdef LAPKERNELS_WITH_CUDA
#include <dlfcn.h>
#endif

namespace lapkernels {

#ifdef LAPKERNELS_WITH_CUDA
void* current_cuda_stream(int32_t device) {
  using Get = int32_t (*)(int32_t, void**);
  static const auto get = [] {
    void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    void* found = torch_cuda ? dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream") : nullptr;
    return reinterpret_cast<Get>(found);
  }();
  void* stream = nullptr;
  STD_TORCH_CHECK(get && get(device, &stream) == 0, "torch gives no CUDA stream for device ",
                  device);
  return stream;
}
#endif

namespace {

std::string simd() { return kernels<float>().name; }

// Names of the ops with CUDA kernels, separated by spaces; nothing if the build had no nvcc.
std::string cuda_kernels() {
#ifdef LAPKERNELS_WITH_CUDA
  return cuda::kernel_names();
#else
  return "";
#endif
}

// Why the CUDA kernels do not run on the current device, or nothing if they do.
std::string why_not_cuda() {
#ifdef LAPKERNELS_WITH_CUDA
  return cuda::why_not();
#else
  return "";
#endif
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def("simd() -> str");
  library.def("cuda_kernels() -> str");
  library.def("why_not_cuda() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(LAPKERNELS_LIBRARY, CompositeExplicitAutograd, library) {
  library.impl("simd", TORCH_BOX(&simd));
  library.impl("cuda_kernels", TORCH_BOX(&cuda_kernels));
  library.impl("why_not_cuda", TORCH_BOX(&why_not_cuda));
}

}  // namespace lapkernels
