#include "arguments.h"

namespace lapkernels {
namespace {

void squared_derivative(Tensor out, double decay, double scale, const Tensor& m, const Tensor& z,
                        std::string activation, double slope) {
  const Activation kind = activation_named(activation);
  check_tensor("m", m, m);
  for (const auto& [name, tensor] :
       {std::pair{"z", &z}, std::pair<const char*, const Tensor*>{"out", &out}}) {
    check_tensor(name, *tensor, m);
    check_dims(name, *tensor, m.dim());
    for (int64_t d = 0; d < m.dim(); ++d) check_size(name, *tensor, d, m.size(d));
  }
  check_writable("out", out);
  if (m.numel() == 0) return;
  // Elementwise: any layout will do if it is the same for all, else the copies make it so.
  bool alike = true;
  int64_t span = 1;
  for (int64_t d = 0; d < m.dim(); ++d) {
    alike = alike && m.stride(d) == z.stride(d) && m.stride(d) == out.stride(d);
    span += (m.size(d) - 1) * m.stride(d);
  }
  alike = alike && span == m.numel();
  const Tensor dense_m = alike ? m : torch::stable::contiguous(m);
  const Tensor dense_z = alike ? z : torch::stable::contiguous(z);
  Tensor dense_out = alike ? out : torch::stable::contiguous(out);
  with_kernels(m, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.squared_derivative(context, static_cast<T*>(dense_out.data_ptr()), {decay, scale},
                               static_cast<const T*>(dense_m.data_ptr()),
                               static_cast<const T*>(dense_z.data_ptr()), m.numel(), kind, slope);
  });
  if (dense_out.data_ptr() != out.data_ptr()) torch::stable::copy_(out, dense_out);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "squared_derivative(Tensor(a!) out, float decay, float scale, Tensor m, Tensor z, "
      "str activation, float slope) -> ()");
}

LAPKERNELS_KERNEL(squared_derivative)

}  // namespace lapkernels
