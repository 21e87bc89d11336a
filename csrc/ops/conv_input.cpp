#include "arguments.h"

namespace lapkernels {
namespace {

void conv_input(Tensor out, double decay, double scale, const Tensor& s, const Tensor& weight,
                Ints input_size, Ints stride, Ints padding, Ints dilation, int64_t groups,
                bool transposed) {
  const Taps taps = check_input_problem(out, "s", s, weight, input_size, stride, padding, dilation,
                                        groups, transposed);
  if (out.numel() == 0) return;
  STD_TORCH_CHECK(s.numel() > 0 && weight.numel() > 0, "s and weight must not be empty");
  with_kernels(s, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.conv_input(context, grid<T>(out, 2), {decay, scale}, grid<const T>(s, 2),
                       grid<const T>(weight, 2), taps, transposed);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "conv_input(Tensor(a!) out, float decay, float scale, Tensor s, Tensor weight, "
      "int[] input_size, int[] stride, int[] padding, int[] dilation, int groups, "
      "bool transposed) -> ()");
}

LAPKERNELS_REGISTER(CPU, conv_input)

}  // namespace lapkernels
