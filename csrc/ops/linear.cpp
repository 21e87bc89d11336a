#include "arguments.h"

namespace lapkernels {
namespace {

void linear(Tensor out, const Tensor& x, const Tensor& weight, std::optional<Tensor> bias) {
  check_tensor("x", x, x);
  check_tensor("weight", weight, x);
  check_tensor("out", out, x);
  check_dims("x", x, 2);
  check_dims("weight", weight, 2);
  check_dims("out", out, 2);
  check_size("weight", weight, 1, x.size(1));
  check_size("out", out, 0, x.size(0));
  check_size("out", out, 1, weight.size(0));
  if (bias) {
    check_tensor("bias", *bias, x);
    check_dims("bias", *bias, 1);
    check_size("bias", *bias, 0, weight.size(0));
    STD_TORCH_CHECK(bias->is_contiguous(), "bias must be contiguous");
  }
  STD_TORCH_CHECK(out.is_contiguous(), "out must be contiguous");
  // A vector of the widest kind.
  STD_TORCH_CHECK(x.size(1) >= 16, "x of shape ", shape_of(x), " must have at least 16 features");
  STD_TORCH_CHECK(x.stride(1) == 1 && weight.stride(1) == 1, "rows of x and weight must be dense");
  if (out.numel() == 0) return;
  with_kernels(x, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.linear(context, grid<T>(out, 2), grid<const T>(x, 2), grid<const T>(weight, 2),
                   bias ? static_cast<const T*>(bias->data_ptr()) : nullptr);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def("linear(Tensor(a!) out, Tensor x, Tensor weight, Tensor? bias) -> ()");
}

LAPKERNELS_REGISTER(CPU, linear)

}  // namespace lapkernels
