#include "arguments.h"

namespace lapkernels {
namespace {

void kronecker_input(Tensor out, double decay, double scale, const Tensor& x, Ints output_size,
                     Ints kernel_size, Ints stride, Ints padding, Ints dilation, int64_t groups,
                     bool transposed, bool reduce, bool bias) {
  const int64_t dims = kernel_size.size();
  check_tensor("x", x, x);
  check_tensor("out", out, x);
  const Taps taps = make_taps(kernel_size, stride, padding, dilation, groups);
  check_dims("x", x, 2 + dims);
  check_list("output_size", output_size, dims, 0, int64_t(1) << 40);
  STD_TORCH_CHECK(x.size(1) % groups == 0, "x of shape ", shape_of(x),
                  " has channels that groups = ", groups, " does not divide");
  int64_t features = x.size(1) / groups;
  for (int64_t k : kernel_size) features *= k;
  check_dims("out", out, 3);
  check_size("out", out, 0, groups);
  check_size("out", out, 1, features + bias);
  check_size("out", out, 2, features + bias);
  check_writable("out", out);
  int64_t size[3] = {1, 1, 1};
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t at = 3 - dims + d, reach = taps.dilation[at] * (taps.kernel[at] - 1) + 1;
    const int64_t most = transposed
                             ? x.size(2 + d) * taps.stride[at] + reach + taps.dilation[at]
                             : x.size(2 + d) + 2 * std::max<int64_t>(taps.padding[at], 0) + 1;
    STD_TORCH_CHECK(output_size[d] <= most, "output_size holds ", output_size[d],
                    ", more than the input can make");
    size[at] = output_size[d];
  }
  if (x.numel() == 0) return update_by_zero(out, decay);
  with_kernels(x, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.kronecker_input(context, grid<T>(out, 0), {decay, scale}, grid<const T>(x, 2), size,
                            taps, transposed, reduce, bias);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "kronecker_input(Tensor(a!) out, float decay, float scale, Tensor x, int[] output_size, "
      "int[] kernel_size, int[] stride, int[] padding, int[] dilation, int groups, "
      "bool transposed, bool reduce, bool bias) -> ()");
}

LAPKERNELS_KERNEL(kronecker_input)

}  // namespace lapkernels
