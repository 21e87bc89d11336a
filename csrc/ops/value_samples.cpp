#include <algorithm>

#include "arguments.h"

namespace lapkernels {
namespace {

// Stretches of `length` values, `count` of them evenly spaced, of each tensor, or all it has if
// that is not more, one tensor after the other.
Tensor value_samples(std::vector<Tensor> tensors, int64_t count, int64_t length) {
  STD_TORCH_CHECK(count > 0 && length > 0, "count and length must be positive");
  STD_TORCH_CHECK(!tensors.empty(), "tensors is empty");
  int64_t size = 0;
  for (const Tensor& tensor : tensors) {
    check_tensor("tensors", tensor, tensors[0]);
    STD_TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous(), "tensors must be contiguous");
    size += std::min(tensor.numel(), count * length);
  }
  const Tensor out = torch::stable::new_empty(tensors[0], {size}, ScalarType::Double);
  double* to = static_cast<double*>(out.data_ptr());
  auto take = [&]<class T>(const T* from, int64_t all) {
    if (all <= count * length) {
      to = std::copy_n(from, all, to);
      return;
    }
    for (int64_t s = 0; s < count; ++s) to = std::copy_n(from + s * (all / count), length, to);
  };
  for (const Tensor& tensor : tensors)
    if (tensor.scalar_type() == ScalarType::Double)
      take(static_cast<const double*>(tensor.data_ptr()), tensor.numel());
    else
      take(static_cast<const float*>(tensor.data_ptr()), tensor.numel());
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def("value_samples(Tensor[] tensors, int count, int length) -> Tensor");
}

LAPKERNELS_REGISTER(CPU, value_samples)

}  // namespace lapkernels
