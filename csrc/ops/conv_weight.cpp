#include "arguments.h"

namespace lapkernels {
namespace {

void conv_weight(Tensor out, double decay, double scale, const Tensor& small, const Tensor& large,
                 Ints kernel_size, Ints stride, Ints padding, Ints dilation, int64_t groups) {
  const auto problem =
      check_weight_problem(small, large, kernel_size, stride, padding, dilation, groups);
  check_weight("out", out, small, large, kernel_size, groups);
  check_writable("out", out);
  if (problem.empty) return update_by_zero(out, decay);
  with_kernels(
      small,
      [&]<class T>(const auto& kernels, const auto& context) {
        kernels.conv_weight(context, grid<T>(out, 2), {decay, scale}, grid<const T>(small, 3),
                            grid<const T>(large, 3), problem.taps);
      },
      std::max(small.size(2), large.size(2)) / groups);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "conv_weight(Tensor(a!) out, float decay, float scale, Tensor small, Tensor large, "
      "int[] kernel_size, int[] stride, int[] padding, int[] dilation, int groups) -> ()");
}

LAPKERNELS_REGISTER(CPU, conv_weight)

}  // namespace lapkernels
