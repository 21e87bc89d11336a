#include "arguments.h"

namespace lapkernels {
namespace {

// The grid of a contiguous tensor of this shape, in a buffer.
template <class T>
Grid<T> dense_grid(const Tensor& like, T* data) {
  Grid<T> g = grid<T>(like, 2);
  g.data = data;
  int64_t step = 1;
  for (int d = 5; d > 0; step *= g.size[d--]) g.stride[d] = step;
  return g;
}

// `plan` has for each layer: the activation that made its input, whether its weight, its bias and
// its input are wanted, the number of spatial dimensions, and for a convolution stride, padding,
// dilation, groups and whether it is transposed. `read` has its weight, input and, for an
// activation, the tensor that gives the slope; `made` gets, for the diagonal and then the gradient,
// weight and bias of each layer and, last, the result at the input of the chain.
void layer_chain(List made, const Tensor& m, std::optional<Tensor> g, List read, Ints plan,
                 std::vector<double> slopes) {
  check_tensor("m", m, m);
  if (g) {
    check_tensor("g", *g, m);
    check_dims("g", *g, m.dim());
    for (int64_t d = 0; d < m.dim(); ++d) check_size("g", *g, d, m.size(d));
  }
  for (const Tensor& tensor : read) check_tensor("read", tensor, m);
  for (const Tensor& tensor : made) {
    check_tensor("made", tensor, m);
    check_writable("made", tensor);
  }
  with_kernels(m, [&]<class T>(const auto& kernels, const auto& context) {
    Reader number{plan};
    size_t next_read = 0, next_made = 0;
    std::vector<ChainLayer<T>> layers;
    std::vector<const Tensor*> inputs;
    const Tensor* above = &m;
    int64_t largest = 0;
    bool wants_input = true;
    for (double slope : slopes) {
      STD_TORCH_CHECK(wants_input,
                      "a layer whose input is not wanted must be the last of the chain");
      const Activation activation = number.activation(Activation::sigmoid_of_result);
      const bool wants_weight = number(), wants_bias = number();
      wants_input = number();
      const int64_t dims = number.dims();
      const Tensor& weight = take("read", read, next_read);
      const Tensor& x = take("read", read, next_read);
      check_dims("m", *above, 2 + dims);
      check_dims("weight", weight, 2 + dims);
      check_dims("input", x, 2 + dims);
      check_size("input", x, 0, m.size(0));
      ChainLayer<T> layer{};
      layer.linear = dims == 0;
      layer.activation = activation;
      layer.slope = slope;
      layer.weight = grid<const T>(weight, 2);
      layer.x = layer.z = grid<const T>(x, 2);
      if (layer.linear) {
        check_size("weight", weight, 0, above->size(1));
        check_size("weight", weight, 1, x.size(1));
        STD_TORCH_CHECK(!wants_input || weight.size(1) <= 1 || weight.stride(1) == 1,
                        "weight must be dense");
        STD_TORCH_CHECK(x.size(1) <= 1 || x.stride(1) == 1, "input must be dense");
      } else {
        layer.taps = number.taps(weight);
        layer.transposed = number();
        check_layer(weight, x, *above, layer.taps.groups, layer.transposed);
      }
      if (layer.activation != Activation::identity) {
        const Tensor& z = take("read", read, next_read);
        check_dims("slope", z, x.dim());
        for (int64_t d = 0; d < x.dim(); ++d) check_size("slope", z, d, x.size(d));
        STD_TORCH_CHECK(!layer.linear || z.size(1) <= 1 || z.stride(1) == 1, "slope must be dense");
        layer.z = grid<const T>(z, 2);
      }
      for (bool squares : {true, false}) {
        if (!squares && !g) continue;
        if (wants_weight) {
          const Tensor& out = take("made", made, next_made);
          check_dims("made", out, weight.dim());
          for (int64_t d = 0; d < weight.dim(); ++d) check_size("made", out, d, weight.size(d));
          STD_TORCH_CHECK(out.is_contiguous(), "made must be contiguous");
          (squares ? layer.weight_squares : layer.weight_gradient) = grid<T>(out, 2);
        }
        if (wants_bias) {
          const Tensor& out = take("made", made, next_made);
          check_dims("made", out, 1);
          check_size("made", out, 0, above->size(1));
          STD_TORCH_CHECK(out.is_contiguous(), "made must be contiguous");
          (squares ? layer.bias_squares : layer.bias_gradient) = static_cast<T*>(out.data_ptr());
        }
      }
      layers.push_back(layer);
      inputs.push_back(wants_input ? &x : nullptr);
      if (wants_input) largest = std::max(largest, x.numel());
      above = &x;
    }
    STD_TORCH_CHECK(!layers.empty(), "the chain has no layer");
    // Diagonal and gradient alternate between two buffers each; the last layer's are the caller's.
    const int64_t carried = g ? 2 : 1;
    const Tensor buffers =
        torch::stable::new_empty(m, {layers.size() > 1 ? 2 * carried * largest : 0});
    T* memory = static_cast<T*>(buffers.data_ptr());
    for (size_t k = 0; k < layers.size(); ++k) {
      if (!inputs[k]) continue;
      for (int64_t index = 0; index < carried; ++index) {
        Grid<T>& at = index ? layers[k].g : layers[k].m;
        if (k + 1 < layers.size()) {
          at = dense_grid<T>(*inputs[k], memory + (index * 2 + k % 2) * largest);
          continue;
        }
        const Tensor& out = take("made", made, next_made);
        check_dims("made", out, inputs[k]->dim());
        for (int64_t d = 0; d < out.dim(); ++d) check_size("made", out, d, inputs[k]->size(d));
        STD_TORCH_CHECK(out.is_contiguous(), "made must be contiguous");
        at = grid<T>(out, 2);
      }
    }
    STD_TORCH_CHECK(
        next_read == read.size() && next_made == made.size() && number.next == plan.size(),
        "more is given than the chain has");
    for (const Tensor& tensor : read)
      STD_TORCH_CHECK(tensor.numel() > 0, "an operand of the chain is empty");
    STD_TORCH_CHECK(m.numel() > 0, "m is empty");
    const Grid<const T> none{nullptr, {}, {}};
    kernels.layer_chain(context, grid<const T>(m, 2), g ? grid<const T>(*g, 2) : none,
                        std::span<const ChainLayer<T>>(layers));
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
  library.def(
      "layer_chain(Tensor(a!)[] made, Tensor m, Tensor? g, Tensor[] read, int[] plan, "
      "float[] slopes) -> ()");
}

LAPKERNELS_REGISTER(CPU, layer_chain)

}  // namespace lapkernels
