#include "arguments.h"

namespace lapkernels {
namespace {

// `plan` has for each layer: the activation behind it, whether it has a bias, the number of spatial
// dimensions, and for a convolution stride, padding, dilation, groups and whether it is transposed.
// `read` has its weight and bias, and `made` gets its result.
void run_layers(List made, const Tensor& x, List read, Ints plan) {
  check_tensor("x", x, x);
  for (const Tensor& tensor : read) check_tensor("read", tensor, x);
  for (const Tensor& tensor : made) {
    check_tensor("made", tensor, x);
    STD_TORCH_CHECK(tensor.is_contiguous(), "made must be contiguous");
  }
  with_kernels(x, [&]<class T>(const auto& kernels, const auto& context) {
    Reader number{plan};
    size_t next_read = 0, next_made = 0;
    std::vector<ForwardLayer<T>> layers;
    const Tensor* input = &x;
    while (next_made < made.size()) {
      ForwardLayer<T> layer{};
      layer.activation = number.activation(Activation::tanh);
      STD_TORCH_CHECK(layer.activation == Activation::identity ||
                          layer.activation == Activation::relu ||
                          layer.activation == Activation::tanh,
                      "no layer runs with this activation");
      const bool has_bias = number();
      const int64_t dims = number.dims();
      const Tensor& weight = take("read", read, next_read);
      const Tensor& out = take("made", made, next_made);
      check_dims("input", *input, 2 + dims);
      check_dims("weight", weight, 2 + dims);
      check_dims("made", out, 2 + dims);
      check_size("made", out, 0, x.size(0));
      layer.linear = dims == 0;
      if (layer.linear) {
        check_size("weight", weight, 0, out.size(1));
        check_size("weight", weight, 1, input->size(1));
        for (const Tensor* one : {&weight, input})
          STD_TORCH_CHECK(one->size(1) <= 1 || one->stride(1) == 1, "rows must be dense");
      } else {
        layer.taps = number.taps(weight);
        layer.transposed = number();
        check_layer(weight, *input, out, layer.taps.groups, layer.transposed);
      }
      if (has_bias) {
        const Tensor& bias = take("read", read, next_read);
        check_dims("bias", bias, 1);
        check_size("bias", bias, 0, out.size(1));
        STD_TORCH_CHECK(bias.is_contiguous(), "bias must be contiguous");
        layer.bias = static_cast<const T*>(bias.data_ptr());
      }
      layer.weight = grid<const T>(weight, 2);
      layer.out = grid<T>(out, 2);
      layers.push_back(layer);
      input = &out;
    }
    STD_TORCH_CHECK(next_read == read.size() && number.next == plan.size(),
                    "more is given than the layers have");
    for (const List& list : {List{x}, read, made})
      for (const Tensor& tensor : list)
        STD_TORCH_CHECK(tensor.numel() > 0, "an operand or a result is empty");
    kernels.run_layers(context, grid<const T>(x, 2), std::span<const ForwardLayer<T>>(layers));
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def("run_layers(Tensor(a!)[] made, Tensor x, Tensor[] read, int[] plan) -> ()");
}

LAPKERNELS_REGISTER(CPU, run_layers)

}  // namespace lapkernels
