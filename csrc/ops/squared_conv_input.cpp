#include "arguments.h"

namespace lapkernels {
namespace {

void squared_conv_input(Tensor out, double decay, double scale, const Tensor& m,
                        const Tensor& weight, Ints input_size, Ints stride, Ints padding,
                        Ints dilation, int64_t groups, bool transposed, std::optional<Tensor> z,
                        std::string activation, double slope) {
  const int64_t dims = input_size.size();
  const Activation kind = activation_named(activation);
  check_tensor("m", m, m);
  check_tensor("weight", weight, m);
  check_tensor("out", out, m);
  check_dims("m", m, 2 + dims);
  check_dims("weight", weight, 2 + dims);
  check_dims("out", out, 2 + dims);
  Ints kernel;
  for (int64_t d = 0; d < dims; ++d) kernel.push_back(weight.size(2 + d));
  const Taps taps = make_taps(kernel, stride, padding, dilation, groups);
  STD_TORCH_CHECK(weight.size(0) % groups == 0, "weight of shape ", shape_of(weight),
                  " has rows that groups = ", groups, " does not divide");
  const int64_t wide = weight.size(1) * groups;
  check_size("m", m, 1, transposed ? wide : weight.size(0));
  check_size("out", out, 0, m.size(0));
  check_size("out", out, 1, transposed ? weight.size(0) : wide);
  for (int64_t d = 0; d < dims; ++d) check_size("out", out, 2 + d, input_size[d]);
  check_writable("out", out);
  STD_TORCH_CHECK(z.has_value() == (kind != Activation::identity),
                  "z and an activation other than 'identity' go together");
  if (z) {
    check_tensor("z", *z, m);
    check_dims("z", *z, 2 + dims);
    for (int64_t d = 0; d < 2 + dims; ++d) check_size("z", *z, d, out.size(d));
  }
  if (m.numel() == 0 || weight.numel() == 0 || out.numel() == 0) return update_by_zero(out, decay);
  with_kernels(m, [&]<class T>(const auto& kernels, const auto& context) {
    const Grid<const T> slopes = grid<const T>(z ? *z : m, 2);
    kernels.squared_conv_input(context, grid<T>(out, 2), {decay, scale}, grid<const T>(m, 2),
                               grid<const T>(weight, 2), taps, transposed, slopes, kind, slope);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "squared_conv_input(Tensor(a!) out, float decay, float scale, Tensor m, Tensor weight, "
      "int[] input_size, int[] stride, int[] padding, int[] dilation, int groups, "
      "bool transposed, Tensor? z, str activation, float slope) -> ()");
}

LAPKERNELS_KERNEL(squared_conv_input)

}  // namespace lapkernels
