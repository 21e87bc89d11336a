#include "arguments.h"

namespace lapkernels {
namespace {

void tanh(Tensor out, const Tensor& x) {
  check_tensor("x", x, x);
  check_tensor("out", out, x);
  check_dims("out", out, x.dim());
  for (int64_t d = 0; d < x.dim(); ++d) check_size("out", out, d, x.size(d));
  STD_TORCH_CHECK(x.is_contiguous() && out.is_contiguous(), "x and out must be contiguous");
  if (x.numel() == 0) return;
  with_kernels(x, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.tanh(context, static_cast<T*>(out.data_ptr()), static_cast<const T*>(x.data_ptr()),
                 x.numel());
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def("tanh(Tensor(a!) out, Tensor x) -> ()");
}

LAPKERNELS_REGISTER(CPU, tanh)

}  // namespace lapkernels
