#include <algorithm>

#include "arguments.h"

namespace lapkernels {
namespace {

// Stretches of `length` values, `count` of them evenly spaced, of each tensor, or all it has if that
// is not more, one tensor after the other.
void value_samples(Tensor out, std::vector<Tensor> tensors, int64_t count, int64_t length) {
  STD_TORCH_CHECK(count > 0 && length > 0, "count and length must be positive");
  STD_TORCH_CHECK(out.is_cpu() && out.scalar_type() == ScalarType::Double && out.is_contiguous(),
                  "out must be a dense vector of doubles");
  double* to = static_cast<double*>(out.data_ptr());
  int64_t left = out.numel();
  auto take = [&]<class T>(const T* from, int64_t size) {
    const bool all = size <= count * length;
    const int64_t stretches = all ? 1 : count, values = all ? size : length;
    STD_TORCH_CHECK(stretches * values <= left, "out is too short");
    left -= stretches * values;
    for (int64_t s = 0; s < stretches; ++s, to += values)
      std::copy_n(from + s * (size / count), values, to);
  };
  for (const Tensor& tensor : tensors) {
    check_tensor("tensors", tensor, tensors[0]);
    STD_TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous(), "tensors must be contiguous");
    if (tensor.scalar_type() == ScalarType::Double)
      take(static_cast<const double*>(tensor.data_ptr()), tensor.numel());
    else
      take(static_cast<const float*>(tensor.data_ptr()), tensor.numel());
  }
  STD_TORCH_CHECK(left == 0, "out is too long");
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def("value_samples(Tensor(a!) out, Tensor[] tensors, int count, int length) -> ()");
}

LAPKERNELS_REGISTER(CPU, value_samples)

}  // namespace lapkernels
