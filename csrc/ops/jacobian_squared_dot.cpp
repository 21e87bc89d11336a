#include "arguments.h"

namespace lapkernels {
namespace {

void jacobian_squared_dot(Tensor out, double decay, double scale, const Tensor& small,
                          const Tensor& large, const Tensor& variance, Ints kernel_size,
                          Ints stride, Ints padding, Ints dilation, int64_t groups) {
  const auto problem =
      check_weight_problem(small, large, kernel_size, stride, padding, dilation, groups);
  check_weight("variance", variance, small, large, kernel_size, groups);
  check_tensor("out", out, small);
  check_dims("out", out, 2);
  check_size("out", out, 0, small.size(1));
  for (int64_t d = 1; d < 2; ++d) check_size("out", out, d, std::max(small.size(0), large.size(0)));
  check_writable("out", out);
  if (problem.empty) return update_by_zero(out, decay);
  // The weight's own size: a copy only if the variance is not laid out like it.
  const Tensor dense = torch::stable::contiguous(variance);
  with_kernels(small, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.jacobian_squared_dot(context, grid<T>(out, 0), {decay, scale}, grid<const T>(small, 3),
                                 grid<const T>(large, 3), grid<const T>(dense, 2), problem.taps);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "jacobian_squared_dot(Tensor(a!) out, float decay, float scale, Tensor small, Tensor large, "
      "Tensor variance, "
      "int[] kernel_size, int[] stride, int[] padding, int[] dilation, int groups) -> ()");
}

LAPKERNELS_KERNEL(jacobian_squared_dot)

}  // namespace lapkernels
