#include "arguments.h"

namespace lapkernels {
namespace {

void squared_conv_input(Tensor out, double decay, double scale, const Tensor& m,
                        const Tensor& weight, Ints input_size, Ints stride, Ints padding,
                        Ints dilation, int64_t groups, bool transposed, std::optional<Tensor> z,
                        std::string activation, double slope) {
  const Activation kind = activation_named(activation);
  const Taps taps = check_input_problem(out, "m", m, weight, input_size, stride, padding, dilation,
                                        groups, transposed);
  STD_TORCH_CHECK(z.has_value() == (kind != Activation::identity),
                  "z and an activation other than 'identity' go together");
  if (z) {
    check_tensor("z", *z, m);
    check_dims("z", *z, out.dim());
    for (int64_t d = 0; d < out.dim(); ++d) check_size("z", *z, d, out.size(d));
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
