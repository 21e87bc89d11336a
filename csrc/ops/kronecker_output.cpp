#include "arguments.h"

namespace lapkernels {
namespace {

void kronecker_output(Tensor out, double decay, double scale, const Tensor& s, int64_t groups,
                      bool reduce) {
  check_tensor("s", s, s);
  check_tensor("out", out, s);
  STD_TORCH_CHECK(s.dim() >= 4 && s.dim() <= 6, "s of shape ", shape_of(s),
                  " must have 4 to 6 dimensions");
  STD_TORCH_CHECK(groups >= 1 && s.size(2) % groups == 0, "s of shape ", shape_of(s),
                  " has channels that groups = ", groups, " does not divide");
  check_dims("out", out, 3);
  check_size("out", out, 0, groups);
  check_size("out", out, 1, s.size(2) / groups);
  check_size("out", out, 2, s.size(2) / groups);
  check_writable("out", out);
  if (s.numel() == 0) return update_by_zero(out, decay);
  with_kernels(s, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.kronecker_output(context, grid<T>(out, 0), {decay, scale}, grid<const T>(s, 3), groups,
                             reduce);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "kronecker_output(Tensor(a!) out, float decay, float scale, Tensor s, int groups, "
      "bool reduce) -> ()");
}

LAPKERNELS_KERNEL(kronecker_output)

}  // namespace lapkernels
