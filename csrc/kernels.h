// The interface of kernels on any device: raw pointers, sizes and strides, without torch.
#pragma once

#include <cstdint>
#include <span>

namespace lapkernels {

// A strided tensor [V, N, C, z, y, x]; unused dimensions have size 1.
template <class T>
struct Grid {
  T* data;
  int64_t size[6];
  int64_t stride[6];

  // A channel of a sample of column v; if there is one column it stands for all.
  T* channel(int64_t v, int64_t n, int64_t c) const {
    return data + (size[0] > 1 ? v : 0) * stride[0] + n * stride[1] + c * stride[2];
  }
};

// Where the taps of a kernel fall: small[t] meets large[t * stride - padding + k * dilation].
struct Taps {
  int64_t kernel[3];
  int64_t stride[3];
  int64_t padding[3];
  int64_t dilation[3];
  int64_t groups;
};

// A contiguous parameter of a list.
template <class T>
struct Flat {
  T* data;
  int64_t size;
};

// out <- decay * out + scale * value; decay 0 overwrites, whatever `out` held.
struct Update {
  double decay;
  double scale;
};

enum class Activation {
  identity,
  given,
  relu,
  leaky_relu,
  elu,
  tanh,
  sigmoid,
  softplus,
  silu,
  gelu,
  tanh_of_result,
  sigmoid_of_result
};

// One layer of a chain: what it reads, and what it computes from the diagonal m and the gradient g
// at its output. Null data is not read or not written. Biases are contiguous.
template <class T>
struct ChainLayer {
  bool linear;
  Grid<const T> weight, x, z;
  Taps taps;
  bool transposed;
  Activation activation;
  double slope;
  Grid<T> weight_squares, weight_gradient;
  T *bias_squares, *bias_gradient;
  Grid<T> m, g;  // at the operand of the activation that made x
};

// The kernels of one kind of device for one element type, or null. A context says how to run on the
// device.
template <class T, class Context>
struct KernelTable {
  const char* name;
  // Weights are grids [1, A, B / groups, k]; var and C, and Kronecker factors, end at x. A variance
  // is contiguous. Each kernel's header has its formula.
  void (*jacobian_squared_sum)(const Context&, Grid<T> out, Update, Grid<const T> small,
                               Grid<const T> large, Taps);
  void (*jacobian_squared_dot)(const Context&, Grid<T> out, Update, Grid<const T> small,
                               Grid<const T> large, Grid<const T> variance, Taps);
  void (*jacobian_gram)(const Context&, Grid<T> out, Update, Grid<const T> small,
                        Grid<const T> large, Grid<const T> variance, Taps);
  void (*squared_conv_weight)(const Context&, Grid<T> out, Update, Grid<const T> small,
                              Grid<const T> large, Taps, bool square_small);
  void (*squared_conv_input)(const Context&, Grid<T> out, Update, Grid<const T> m,
                             Grid<const T> weight, Taps, bool transposed, Grid<const T> z,
                             Activation, double slope);
  void (*kronecker_input)(const Context&, Grid<T> out, Update, Grid<const T> x,
                          const int64_t output_size[3], Taps, bool transposed, bool reduce,
                          bool bias);
  void (*kronecker_output)(const Context&, Grid<T> out, Update, Grid<const T> s, int64_t groups,
                           bool reduce);
  void (*squared_derivative)(const Context&, T* out, Update, const T* m, const T* z, int64_t size,
                             Activation, double slope);
  void (*gaussian_kl)(const Context&, T* out, Update, std::span<const Flat<const T>> mean,
                      std::span<const Flat<const T>> log_sigma, double prior_sigma);
  void (*squared_gradient_sum)(const Context&, T* out, Update,
                               std::span<const Flat<const T>> gradient,
                               std::span<const Flat<const T>> log_sigma);
  void (*precision_update)(const Context&, std::span<const Flat<T>> precision,
                           std::span<const Flat<const T>> diagonal, double decay, double scale);
  void (*sample_from_precision)(const Context&, std::span<const Flat<T>> noise,
                                std::span<const Flat<const T>> mean,
                                std::span<const Flat<const T>> precision, double prior,
                                double scale);
  // Windows: the samples of these grids are the lanes, and lie next to each other if they can.
  void (*window_squared_sum)(const Context&, Grid<T> out, Update, Grid<const T> small,
                             Grid<const T> large, Taps);
  void (*window_pull)(const Context&, Grid<T> out, Update, Grid<const T> s, Grid<const T> weight,
                      Taps, bool transposed, Grid<const T> factor);
  // Convolutions in one group, with no negative padding, whose columns share their zeros.
  void (*sparse_squared_sum)(const Context&, Grid<T> out, Update, Grid<const T> s, Grid<const T> x,
                             Taps);
  void (*sparse_conv_input)(const Context&, Grid<T> out, Update, Grid<const T> s,
                            Grid<const T> weight, Taps);
  // The gradients of a layer; a GPU's own library has these.
  void (*conv_input)(const Context&, Grid<T> out, Update, Grid<const T> s, Grid<const T> weight,
                     Taps, bool transposed);
  void (*conv_weight)(const Context&, Grid<T> out, Update, Grid<const T> small, Grid<const T> large,
                      Taps);
  // From the last layer of a chain to the first.
  void (*layer_chain)(const Context&, Grid<const T> m, Grid<const T> g,
                      std::span<const ChainLayer<T>>);
  // [V, N, J] of [V, F], [N, F] and [F, J], each dense along its last dimension.
  void (*scaled_product)(const Context&, Grid<T> out, Update, Grid<const T> rows,
                         Grid<const T> factor, Grid<const T> weight);
  // Two spatial dimensions; the index is contiguous.
  void (*max_pool)(const Context&, Grid<T> out, int64_t* index, Grid<const T> x, Taps);
};

}  // namespace lapkernels
