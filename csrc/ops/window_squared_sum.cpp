#include "arguments.h"

namespace lapkernels {
namespace {

void window_squared_sum(Tensor out, double decay, double scale, const Tensor& small,
                        const Tensor& large, Ints kernel_size, Ints stride, Ints dilation,
                        Ints offset, int64_t groups) {
  check_tensor("small", small, small);
  check_tensor("large", large, small);
  check_tensor("out", out, small);
  const Taps taps = make_taps(kernel_size, stride, offset, dilation, groups, "offset");
  const int64_t dims = kernel_size.size();
  check_dims("small", small, 3 + dims);
  check_dims("large", large, 3 + dims);
  const int64_t columns = small.size(0) == 1 ? large.size(0) : small.size(0);
  for (const auto& [name, tensor] : {std::pair{"small", &small}, std::pair{"large", &large}}) {
    STD_TORCH_CHECK(tensor->size(0) == 1 || tensor->size(0) == columns, name, " of shape ",
                    shape_of(*tensor), " must have 1 or ", columns, " columns");
    STD_TORCH_CHECK(tensor->size(1) % groups == 0, name, " of shape ", shape_of(*tensor),
                    " has channels that groups = ", groups, " does not divide");
  }
  check_size("large", large, 2 + dims, small.size(2 + dims));
  check_dims("out", out, 2 + dims);
  check_size("out", out, 0, small.size(1));
  check_size("out", out, 1, large.size(1) / groups);
  for (int64_t d = 0; d < dims; ++d) check_size("out", out, 2 + d, kernel_size[d]);
  check_writable("out", out);
  if (small.numel() == 0 || large.numel() == 0) return update_by_zero(out, decay);
  with_kernels(small, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.window_squared_sum(context, grid<T>(out, 2), {decay, scale},
                               window_grid<const T>(small, 2), window_grid<const T>(large, 2),
                               taps);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "window_squared_sum(Tensor(a!) out, float decay, float scale, Tensor small, Tensor large, "
      "int[] kernel_size, int[] stride, int[] dilation, int[] offset, int groups) -> ()");
}

LAPKERNELS_KERNEL(window_squared_sum)

}  // namespace lapkernels
