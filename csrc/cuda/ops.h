// The launchers of the table, one file an op; each is instantiated for every element type.
#pragma once

#include "kernels.h"

namespace lapkernels::cuda {

template <class T>
void jacobian_squared_sum(const Context&, Grid<T> out, Update, Grid<const T> small,
                          Grid<const T> large, Taps);
template <class T>
void jacobian_squared_dot(const Context&, Grid<T> out, Update, Grid<const T> small,
                          Grid<const T> large, Grid<const T> variance, Taps);
template <class T>
void jacobian_gram(const Context&, Grid<T> out, Update, Grid<const T> small, Grid<const T> large,
                   Grid<const T> variance, Taps);
template <class T>
void squared_conv_weight(const Context&, Grid<T> out, Update, Grid<const T> small,
                         Grid<const T> large, Taps, bool square_small);
template <class T>
void squared_conv_input(const Context&, Grid<T> out, Update, Grid<const T> m, Grid<const T> weight,
                        Taps, bool transposed, Grid<const T> z, Activation, double slope);
template <class T>
void kronecker_input(const Context&, Grid<T> out, Update, Grid<const T> x,
                     const int64_t output_size[3], Taps, bool transposed, bool reduce, bool bias);
template <class T>
void kronecker_output(const Context&, Grid<T> out, Update, Grid<const T> s, int64_t groups,
                      bool reduce);
template <class T>
void squared_derivative(const Context&, T* out, Update, const T* m, const T* z, int64_t size,
                        Activation, double slope);
template <class T>
void gaussian_kl(const Context&, T* out, Update, std::span<const Flat<const T>> mean,
                 std::span<const Flat<const T>> log_sigma, double prior_sigma);
template <class T>
void squared_gradient_sum(const Context&, T* out, Update, std::span<const Flat<const T>> gradient,
                          std::span<const Flat<const T>> log_sigma);
template <class T>
void precision_update(const Context&, std::span<const Flat<T>> precision,
                      std::span<const Flat<const T>> diagonal, double decay, double scale);
template <class T>
void sample_from_precision(const Context&, std::span<const Flat<T>> noise,
                           std::span<const Flat<const T>> mean,
                           std::span<const Flat<const T>> precision, double prior, double scale);
template <class T>
void window_squared_sum(const Context&, Grid<T> out, Update, Grid<const T> small,
                        Grid<const T> large, Taps);
template <class T>
void window_pull(const Context&, Grid<T> out, Update, Grid<const T> s, Grid<const T> weight, Taps,
                 bool transposed, Grid<const T> factor);

template <class T>
void sparse_conv_input(const Context&, Grid<T> out, Update, Grid<const T> s, Grid<const T> weight,
                       Taps);

// A launcher's instances: LAPKERNELS_INSTANCES(declaration with T).
#define LAPKERNELS_INSTANCES(op)            \
  template decltype(op<float>) op<float>;   \
  template decltype(op<double>) op<double>; \
  template decltype(op<Half>) op<Half>;     \
  template decltype(op<BFloat16>) op<BFloat16>;

}  // namespace lapkernels::cuda
