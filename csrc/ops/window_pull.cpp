#include "arguments.h"

namespace lapkernels {
namespace {

void window_pull(Tensor out, double decay, double scale, const Tensor& s, const Tensor& weight,
                 Ints size, Ints stride, Ints dilation, Ints offset, int64_t groups,
                 bool transposed, std::optional<Tensor> factor) {
  check_tensor("s", s, s);
  check_tensor("weight", weight, s);
  check_tensor("out", out, s);
  const int64_t dims = static_cast<int64_t>(size.size());
  check_dims("weight", weight, 2 + dims);
  check_dims("s", s, 3 + dims);
  check_dims("out", out, 3 + dims);
  Ints kernel;
  for (int64_t d = 0; d < dims; ++d) kernel.push_back(weight.size(2 + d));
  const Taps taps = make_taps(kernel, stride, offset, dilation, groups, "offset");
  STD_TORCH_CHECK(weight.size(0) % groups == 0, "weight of shape ", shape_of(weight),
                  " has rows that groups = ", groups, " does not divide");
  const int64_t wide = weight.size(1) * groups;
  check_size("s", s, 1, transposed ? wide : weight.size(0));
  check_size("out", out, 0, s.size(0));
  check_size("out", out, 1, transposed ? weight.size(0) : wide);
  for (int64_t d = 0; d < dims; ++d) check_size("out", out, 2 + d, size[d]);
  check_size("out", out, 2 + dims, s.size(2 + dims));
  check_writable("out", out);
  if (factor) {
    check_tensor("factor", *factor, s);
    check_dims("factor", *factor, 2 + dims);
    for (int64_t d = 0; d < 2 + dims; ++d) check_size("factor", *factor, d, out.size(1 + d));
  }
  if (s.numel() == 0 || weight.numel() == 0 || out.numel() == 0) return update_by_zero(out, decay);
  with_kernels(s, [&]<class T>(const auto& kernels, const auto& context) {
    const Grid<const T> slopes = factor ? window_grid<const T>(*factor, 1) : Grid<const T>{};
    kernels.window_pull(context, window_grid<T>(out, 2), {decay, scale}, window_grid<const T>(s, 2),
                        grid<const T>(weight, 2), taps, transposed, slopes);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "window_pull(Tensor(a!) out, float decay, float scale, Tensor s, Tensor weight, int[] size, "
      "int[] stride, int[] dilation, int[] offset, int groups, bool transposed, "
      "Tensor? factor) -> ()");
}

LAPKERNELS_KERNEL(window_pull)

}  // namespace lapkernels
