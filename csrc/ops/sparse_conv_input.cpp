#include "arguments.h"

namespace lapkernels {
namespace {

void sparse_conv_input(Tensor out, double decay, double scale, const Tensor& s,
                       const Tensor& weight, Ints input_size, Ints stride, Ints padding,
                       Ints dilation) {
  check_tensor("s", s, s);
  check_tensor("weight", weight, s);
  check_tensor("out", out, s);
  const int64_t dims = static_cast<int64_t>(input_size.size());
  check_dims("weight", weight, 2 + dims);
  check_dims("s", s, 3 + dims);
  check_dims("out", out, 3 + dims);
  Ints kernel;
  for (int64_t d = 0; d < dims; ++d) kernel.push_back(weight.size(2 + d));
  const Taps taps = make_taps(kernel, stride, padding, dilation, 1);
  for (int64_t side : padding) STD_TORCH_CHECK(side >= 0, "padding holds ", side, ", below 0");
  check_size("s", s, 2, weight.size(0));
  check_size("out", out, 0, s.size(0));
  check_size("out", out, 1, s.size(1));
  check_size("out", out, 2, weight.size(1));
  for (int64_t d = 0; d < dims; ++d) check_size("out", out, 3 + d, input_size[d]);
  check_writable("out", out);
  if (s.numel() == 0 || weight.numel() == 0 || out.numel() == 0) return update_by_zero(out, decay);
  with_kernels(s, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.sparse_conv_input(context, grid<T>(out, 3), {decay, scale}, grid<const T>(s, 3),
                              grid<const T>(weight, 2), taps);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "sparse_conv_input(Tensor(a!) out, float decay, float scale, Tensor s, Tensor weight, "
      "int[] input_size, int[] stride, int[] padding, int[] dilation) -> ()");
}

LAPKERNELS_KERNEL(sparse_conv_input)

}  // namespace lapkernels
