#include "arguments.h"

namespace lapkernels {
namespace {

void max_pool(Tensor out, Tensor index, const Tensor& x, Ints kernel_size, Ints stride,
              Ints padding, Ints dilation) {
  check_tensor("x", x, x);
  check_tensor("out", out, x);
  check_dims("x", x, 4);
  check_dims("out", out, 4);
  check_dims("index", index, 4);
  STD_TORCH_CHECK(kernel_size.size() == 2, "kernel_size must have 2 entries");
  const Taps taps = make_taps(kernel_size, stride, padding, dilation, 1);
  for (int64_t d = 0; d < 4; ++d) check_size("index", index, d, out.size(d));
  check_size("out", out, 0, x.size(0));
  check_size("out", out, 1, x.size(1));
  STD_TORCH_CHECK(index.is_cpu() && index.scalar_type() == ScalarType::Long, "index must be int64");
  STD_TORCH_CHECK(out.is_contiguous() && index.is_contiguous(), "results must be contiguous");
  STD_TORCH_CHECK(x.size(3) <= 1 || x.stride(3) == 1, "rows of x must be dense");
  STD_TORCH_CHECK(x.size(2) * x.size(3) < (int64_t(1) << 31), "x has too many positions");
  for (int64_t d = 0; d < 2; ++d) {
    const int64_t reach = dilation[d] * (kernel_size[d] - 1) + 1;
    STD_TORCH_CHECK(padding[d] >= 0 && 2 * padding[d] <= kernel_size[d], "padding holds ",
                    padding[d], ": at most half the kernel is possible");
    // Every window has an entry.
    STD_TORCH_CHECK(
        out.size(2 + d) == 0 ||
            ((out.size(2 + d) - 1) * stride[d] - padding[d] < x.size(2 + d) && reach > padding[d]),
        "out of shape ", shape_of(out), " has windows outside of x");
  }
  if (out.numel() == 0) return;
  with_kernels(x, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.max_pool(context, grid<T>(out, 2), static_cast<int64_t*>(index.data_ptr()),
                     grid<const T>(x, 2), taps);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "max_pool(Tensor(a!) out, Tensor(b!) index, Tensor x, int[] kernel_size, int[] stride, "
      "int[] padding, int[] dilation) -> ()");
}

LAPKERNELS_REGISTER(CPU, max_pool)

}  // namespace lapkernels
