#include "arguments.h"

namespace lapkernels {
namespace {

void sparse_squared_sum(Tensor out, double decay, double scale, const Tensor& small,
                        const Tensor& large, Ints kernel_size, Ints stride, Ints padding,
                        Ints dilation, int64_t groups) {
  const auto problem =
      check_weight_problem(small, large, kernel_size, stride, padding, dilation, groups);
  STD_TORCH_CHECK(groups == 1, "groups is ", groups, ": it must be 1");
  for (int64_t side : padding) STD_TORCH_CHECK(side >= 0, "padding holds ", side, ", below 0");
  check_size("large", large, 0, 1);
  check_weight("out", out, small, large, kernel_size, groups);
  check_writable("out", out);
  if (problem.empty) return update_by_zero(out, decay);
  with_kernels(small, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.sparse_squared_sum(context, grid<T>(out, 2), {decay, scale}, grid<const T>(small, 3),
                               grid<const T>(large, 3), problem.taps);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "sparse_squared_sum(Tensor(a!) out, float decay, float scale, Tensor small, Tensor large, "
      "int[] kernel_size, int[] stride, int[] padding, int[] dilation, int groups) -> ()");
}

LAPKERNELS_KERNEL(sparse_squared_sum)

}  // namespace lapkernels
