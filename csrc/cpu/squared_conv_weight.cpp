#include "arguments.h"

namespace lapkernels {
namespace {

void squared_conv_weight(Tensor out, double decay, double scale, const Tensor& small,
                         const Tensor& large, Ints kernel_size, Ints stride, Ints padding,
                         Ints dilation, int64_t groups, bool square_small) {
  const auto problem =
      check_weight_problem(small, large, kernel_size, stride, padding, dilation, groups);
  check_weight("out", out, small, large, kernel_size, groups);
  check_writable("out", out);
  if (problem.empty) return update_by_zero(out, decay);
  with_dtype(small, [&]<class T>() {
    kernels<T>().squared_conv_weight(torch_context(), grid<T>(out, 2), {decay, scale},
                                     grid<const T>(small, 3), grid<const T>(large, 3), problem.taps,
                                     square_small);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(lapkernels_native, library) {
  library.def(
      "squared_conv_weight(Tensor(a!) out, float decay, float scale, Tensor small, Tensor large, "
      "int[] kernel_size, int[] stride, int[] padding, int[] dilation, int groups, "
      "bool square_small) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(lapkernels_native, CPU, library) {
  library.impl("squared_conv_weight", TORCH_BOX(&squared_conv_weight));
}

}  // namespace lapkernels
