// Kernel arguments from torch's, with checks that name the argument and the value.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "devices.h"

namespace lapkernels {

using Ints = std::vector<int64_t>;

inline std::string shape_of(const Tensor& tensor) {
  std::string text = "[";
  for (int64_t d = 0; d < tensor.dim(); ++d)
    text += (d ? ", " : "") + std::to_string(tensor.size(d));
  return text + "]";
}

// Dtype and device of every tensor argument must be those of the first.
inline void check_tensor(const char* name, const Tensor& tensor, const Tensor& like) {
  STD_TORCH_CHECK(tensor.device() == like.device(), name, " must be on the other tensors' device");
  STD_TORCH_CHECK(has_kernels(tensor), name, " has a dtype for which there are no kernels");
  STD_TORCH_CHECK(tensor.scalar_type() == like.scalar_type(), name,
                  " must have the same dtype as the other tensors");
}

inline void check_dims(const char* name, const Tensor& tensor, int64_t dims) {
  STD_TORCH_CHECK(tensor.dim() == dims, name, " of shape ", shape_of(tensor), " must have ", dims,
                  " dimensions");
}

inline void check_size(const char* name, const Tensor& tensor, int64_t d, int64_t size) {
  STD_TORCH_CHECK(tensor.size(d) == size, name, " of shape ", shape_of(tensor), " must have size ",
                  size, " in dimension ", d);
}

// A buffer that is written must not hold the same element twice.
inline void check_writable(const char* name, const Tensor& tensor) {
  for (int64_t d = 0; d < tensor.dim(); ++d)
    STD_TORCH_CHECK(tensor.size(d) <= 1 || tensor.stride(d) != 0, name,
                    " is expanded: its elements share memory");
}

// The tensor as [V, N, C, z, y, x]: `leading` of its first dimensions end at C, the rest at x.
template <class T>
Grid<T> grid(const Tensor& tensor, int64_t leading) {
  Grid<T> g{static_cast<T*>(tensor.data_ptr()), {1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0}};
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    const int64_t at = d < leading ? 3 - leading + d : 6 - tensor.dim() + d;
    g.size[at] = tensor.size(d);
    g.stride[at] = tensor.stride(d);
  }
  return g;
}

// Windows [V, C, *positions, L], or [C, *positions, L], as a grid whose samples are the lanes.
template <class T>
Grid<T> window_grid(const Tensor& tensor, int64_t leading) {
  Grid<T> g{static_cast<T*>(tensor.data_ptr()), {1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0}};
  const int64_t last = tensor.dim() - 1;
  for (int64_t d = 0; d <= last; ++d) {
    const int64_t at = d == last ? 1 : d >= leading ? 6 - last + d : d == leading - 1 ? 2 : 0;
    g.size[at] = tensor.size(d);
    g.stride[at] = tensor.stride(d);
  }
  return g;
}

inline void check_list(const char* name, const Ints& values, int64_t dims, int64_t low,
                       int64_t high) {
  STD_TORCH_CHECK(static_cast<int64_t>(values.size()) == dims, name, " has ", values.size(),
                  " entries, but there are ", dims, " spatial dimensions");
  for (int64_t value : values)
    STD_TORCH_CHECK(value >= low && value <= high, name, " holds ", value, ", outside [", low, ", ",
                    high, "]");
}

// `padding_name` is what the op calls its padding.
inline Taps make_taps(const Ints& kernel, const Ints& stride, const Ints& padding,
                      const Ints& dilation, int64_t groups, const char* padding_name = "padding") {
  const int64_t dims = kernel.size();
  constexpr int64_t kMost = int64_t(1) << 24;
  STD_TORCH_CHECK(dims >= 1 && dims <= 3, "kernel_size has ", dims, " entries: 1 to 3 are needed");
  check_list("kernel_size", kernel, dims, 1, kMost);
  check_list("stride", stride, dims, 1, kMost);
  check_list(padding_name, padding, dims, -kMost, kMost);
  check_list("dilation", dilation, dims, 1, kMost);
  STD_TORCH_CHECK(groups >= 1, "groups is ", groups, ": it must be positive");
  Taps taps{{1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, groups};
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t at = 3 - dims + d;
    STD_TORCH_CHECK(dilation[d] * (kernel[d] - 1) <= kMost, "dilation ", dilation[d],
                    " spreads the kernel too far");
    taps.kernel[at] = kernel[d];
    taps.stride[at] = stride[d];
    taps.padding[at] = padding[d];
    taps.dilation[at] = dilation[d];
  }
  return taps;
}

// Keeps or clears a buffer to which an empty batch adds nothing.
inline void update_by_zero(Tensor out, double decay) {
  if (out.numel() == 0 || decay == 1) return;
  STD_TORCH_CHECK(decay == 0, "out can only be kept or cleared by an empty batch");
  torch::stable::zero_(out);
}

// The checks shared by the ops on a layer's weight.
struct WeightProblem {
  Taps taps;
  bool empty;  // nothing to sum
};

inline WeightProblem check_weight_problem(const Tensor& small, const Tensor& large,
                                          const Ints& kernel, const Ints& stride,
                                          const Ints& padding, const Ints& dilation,
                                          int64_t groups) {
  check_tensor("small", small, small);
  check_tensor("large", large, small);
  const Taps taps = make_taps(kernel, stride, padding, dilation, groups);
  const int64_t dims = kernel.size();
  check_dims("small", small, 3 + dims);
  check_dims("large", large, 3 + dims);
  const int64_t columns = std::max(small.size(0), large.size(0));
  for (const auto& [name, tensor] : {std::pair{"small", &small}, std::pair{"large", &large}}) {
    STD_TORCH_CHECK(tensor->size(0) == 1 || tensor->size(0) == columns, name, " of shape ",
                    shape_of(*tensor), " must have 1 or ", columns, " columns");
    STD_TORCH_CHECK(tensor->size(2) % groups == 0, name, " of shape ", shape_of(*tensor),
                    " has channels that groups = ", groups, " does not divide");
  }
  check_size("large", large, 1, small.size(1));
  return {taps, small.numel() == 0 || large.numel() == 0};
}

inline void check_weight(const char* name, const Tensor& weight, const Tensor& small,
                         const Tensor& large, const Ints& kernel, int64_t groups) {
  check_tensor(name, weight, small);
  check_dims(name, weight, 2 + static_cast<int64_t>(kernel.size()));
  check_size(name, weight, 0, small.size(2));
  check_size(name, weight, 1, large.size(2) / groups);
  for (size_t d = 0; d < kernel.size(); ++d) check_size(name, weight, 2 + d, kernel[d]);
}

// Checks of ops that go from `given`, at a layer's output, to `out`, at its input.
inline Taps check_input_problem(const Tensor& out, const char* name, const Tensor& given,
                                const Tensor& weight, const Ints& input_size, const Ints& stride,
                                const Ints& padding, const Ints& dilation, int64_t groups,
                                bool transposed) {
  check_tensor(name, given, given);
  check_tensor("weight", weight, given);
  check_tensor("out", out, given);
  const int64_t dims = input_size.size();
  check_dims(name, given, 2 + dims);
  check_dims("weight", weight, 2 + dims);
  check_dims("out", out, 2 + dims);
  Ints kernel;
  for (int64_t d = 0; d < dims; ++d) kernel.push_back(weight.size(2 + d));
  const Taps taps = make_taps(kernel, stride, padding, dilation, groups);
  STD_TORCH_CHECK(weight.size(0) % groups == 0, "weight of shape ", shape_of(weight),
                  " has rows that groups = ", groups, " does not divide");
  const int64_t wide = weight.size(1) * groups;
  check_size(name, given, 1, transposed ? wide : weight.size(0));
  check_size("out", out, 0, given.size(0));
  check_size("out", out, 1, transposed ? weight.size(0) : wide);
  for (int64_t d = 0; d < dims; ++d) check_size("out", out, 2 + d, input_size[d]);
  check_writable("out", out);
  return taps;
}

using List = std::vector<Tensor>;

inline const Tensor& take(const char* name, const List& list, size_t& next) {
  STD_TORCH_CHECK(next < list.size(), name, " ends too early");
  return list[next++];
}

// Reads the numbers of a plan of layers in order.
struct Reader {
  const Ints& values;
  size_t next = 0;
  int64_t operator()() {
    STD_TORCH_CHECK(next < values.size(), "plan ends too early");
    return values[next++];
  }
  Ints operator()(int64_t count) {
    Ints found;
    for (int64_t i = 0; i < count; ++i) found.push_back((*this)());
    return found;
  }
  Activation activation(Activation last) {
    const int64_t kind = (*this)();
    STD_TORCH_CHECK(kind >= 0 && kind <= int64_t(last), "activation ", kind, " is not known");
    return Activation(kind);
  }
  // Spatial dimensions: none for a Linear layer.
  int64_t dims() {
    const int64_t count = (*this)();
    STD_TORCH_CHECK(count >= 0 && count <= 3, count, " spatial dimensions");
    return count;
  }
  // Stride, padding, dilation and groups of a convolution.
  Taps taps(const Tensor& weight) {
    Ints kernel;
    for (int64_t d = 2; d < weight.dim(); ++d) kernel.push_back(weight.size(d));
    const int64_t dims = kernel.size();
    const Ints stride = (*this)(dims), padding = (*this)(dims), dilation = (*this)(dims);
    return make_taps(kernel, stride, padding, dilation, (*this)());
  }
};

// A convolution's weight has the channels of its input x and its result y.
inline void check_layer(const Tensor& weight, const Tensor& x, const Tensor& y, int64_t groups,
                        bool transposed) {
  const Tensor &small = transposed ? x : y, &large = transposed ? y : x;
  check_size("weight", weight, 0, small.size(1));
  STD_TORCH_CHECK(weight.size(0) % groups == 0 && weight.size(1) * groups == large.size(1),
                  "weight of shape ", shape_of(weight), " does not fit ", groups, " groups");
}

inline Activation activation_named(const std::string& name) {
  constexpr std::pair<const char*, Activation> known[] = {
      {"identity", Activation::identity},
      {"given", Activation::given},
      {"relu", Activation::relu},
      {"leaky_relu", Activation::leaky_relu},
      {"elu", Activation::elu},
      {"tanh", Activation::tanh},
      {"sigmoid", Activation::sigmoid},
      {"softplus", Activation::softplus},
      {"silu", Activation::silu},
      {"gelu", Activation::gelu},
      {"tanh_of_result", Activation::tanh_of_result},
      {"sigmoid_of_result", Activation::sigmoid_of_result}};
  for (const auto& [text, kind] : known)
    if (name == text) return kind;
  STD_TORCH_CHECK(false, "activation '", name, "' is not known");
  return Activation::identity;
}

// A list of contiguous tensors; `first` is the list whose shapes all others must have.
template <class T>
std::vector<Flat<T>> flat_list(const char* name, const std::vector<Tensor>& tensors,
                               const std::vector<Tensor>& first) {
  STD_TORCH_CHECK(tensors.size() == first.size(), name, " has ", tensors.size(),
                  " entries, but the first list has ", first.size());
  std::vector<Flat<T>> flat;
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_tensor(name, tensors[i], first[0]);
    STD_TORCH_CHECK(tensors[i].numel() == first[i].numel(), name, " has ", tensors[i].numel(),
                    " elements in entry ", i, ", not ", first[i].numel());
    STD_TORCH_CHECK(tensors[i].is_contiguous(), name, " must be contiguous in entry ", i);
    flat.push_back({static_cast<T*>(tensors[i].data_ptr()), tensors[i].numel()});
  }
  return flat;
}

}  // namespace lapkernels
