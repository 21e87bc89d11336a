#include "arguments.h"

namespace lapkernels {
namespace {

void scaled_product(Tensor out, double decay, double scale, const Tensor& rows,
                    const Tensor& factor, const Tensor& weight) {
  check_tensor("rows", rows, rows);
  check_tensor("factor", factor, rows);
  check_tensor("weight", weight, rows);
  check_tensor("out", out, rows);
  check_dims("rows", rows, 2);
  check_dims("factor", factor, 2);
  check_dims("weight", weight, 2);
  check_dims("out", out, 3);
  check_size("factor", factor, 1, rows.size(1));
  check_size("weight", weight, 0, rows.size(1));
  check_size("out", out, 0, rows.size(0));
  check_size("out", out, 1, factor.size(0));
  check_size("out", out, 2, weight.size(1));
  check_writable("out", out);
  if (out.numel() == 0) return;
  if (rows.size(1) == 0) return update_by_zero(out, decay);
  auto dense = [](const Tensor& tensor) {
    const int64_t last = tensor.dim() - 1;
    return tensor.size(last) <= 1 || tensor.stride(last) == 1 ? tensor
                                                              : torch::stable::contiguous(tensor);
  };
  const Tensor dense_rows = dense(rows), dense_factor = dense(factor), dense_weight = dense(weight);
  Tensor dense_out = dense(out);
  with_kernels(rows, [&]<class T>(const auto& kernels, const auto& context) {
    kernels.scaled_product(context, grid<T>(dense_out, 3), {decay, scale},
                           grid<const T>(dense_rows, 2), grid<const T>(dense_factor, 2),
                           grid<const T>(dense_weight, 2));
  });
  if (dense_out.data_ptr() != out.data_ptr()) torch::stable::copy_(out, dense_out);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "scaled_product(Tensor(a!) out, float decay, float scale, Tensor rows, Tensor factor, "
      "Tensor weight) -> ()");
}

LAPKERNELS_REGISTER(CPU, scaled_product)

}  // namespace lapkernels
