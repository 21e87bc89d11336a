// Checks of the kernels that see a few columns at a time: windows, and columns with shared zeros.
#pragma once

#include "layers.h"

namespace lapkernels {

// The samples of a layer are the lanes of its windows.
template <class T>
void check_window_kernels() {
  Layer l;
  for (int d = 0; d < 3; ++d) {
    l.small[d] = std::min<int64_t>(l.small[d], 6);
    l.large[d] = std::min<int64_t>(l.large[d], 12);
  }
  l.samples = draw(0, 1) ? draw(1, 20) : draw(20, 150);
  const int64_t kernel = l.taps_in_all(), b_group = l.b / l.taps.groups;
  const int64_t a_group = l.a / l.taps.groups;

  const bool on_large = draw(0, 1);
  Block6<T> small(l.small_size(on_large ? 1 : l.columns, l.samples), -2, 2);
  Block6<T> large(l.large_size(on_large ? l.columns : 1, l.samples), -2, 2);
  Block6<T> out(l.weight_size(), -3, 3);
  const Block6<T> before = out;
  const Update update{double(draw(0, 2)), double(draw(1, 2))};
  std::vector<double> squares(l.a * b_group * kernel, 0.0);
  for (int64_t n = 0; n < l.samples; ++n)
    for (int64_t v = 0; v < l.columns; ++v) {
      const auto g = gradients(l, small, large, v, n, false, false);
      for (size_t i = 0; i < g.size(); ++i) squares[i] += g[i] * g[i];
    }
  kernels<T>().window_squared_sum(context(), out.grid, update, small.view(), large.view(), l.taps);
  require_weight("window_squared_sum", l, out, before, update, squares);

  const bool transposed = draw(0, 1), has_factor = draw(0, 1);
  const auto source = [&](int64_t v) {
    return transposed ? l.large_size(v, l.samples) : l.small_size(v, l.samples);
  };
  const auto target = [&](int64_t v) {
    return transposed ? l.small_size(v, l.samples) : l.large_size(v, l.samples);
  };
  Block6<T> weight(l.weight_size(), -2, 2), s(source(l.columns), -2, 2), factor(target(1), -2, 2);
  Block6<T> pulled(target(l.columns), -3, 3), sums(target(l.columns), 0, 0);
  const Block6<T> old = pulled;
  l.each([&](const int64_t* t, const int64_t* u, const int64_t* k) {
    const int64_t* from = transposed ? u : t;
    const int64_t* to = transposed ? t : u;
    for (int64_t a = 0; a < l.a; ++a)
      for (int64_t b = 0; b < b_group; ++b) {
        const T w = weight.at(0, a, b, k[0], k[1], k[2]);
        const int64_t channel = a / a_group * b_group + b;
        for (int64_t v = 0; v < l.columns; ++v)
          for (int64_t n = 0; n < l.samples; ++n)
            sums.at(v, n, transposed ? a : channel, to[0], to[1], to[2]) +=
                w * s.at(v, n, transposed ? channel : a, from[0], from[1], from[2]);
      }
  });
  kernels<T>().window_pull(context(), pulled.grid, update, s.view(), weight.view(), l.taps,
                           transposed, has_factor ? factor.view() : Grid<const T>{});
  require_each("window_pull", pulled, [&](int64_t v, auto... at) {
    const T scaled = sums.at(v, at...) * (has_factor ? factor.at(0, at...) : T(1));
    return update.decay * old.at(v, at...) + update.scale * scaled;
  });
}

#ifndef FUZZ_EMULATED
// Columns that share most of their zeros: a convolution in one group, padded by nothing negative.
template <class T>
void check_sparse_kernels() {
  Layer l;
  while (l.taps.groups > 1 ||
         std::min({l.taps.padding[0], l.taps.padding[1], l.taps.padding[2]}) < 0)
    l = Layer();
  Block6<T> s(l.small_size(l.columns, l.samples), -2, 2), x(l.large_size(1, l.samples), -2, 2);
  const int64_t kept = draw(0, 4);  // entries of four that are not made zero
  for (int64_t n = 0; n < l.samples; ++n)
    for (int64_t a = 0; a < l.a; ++a)
      for (int64_t z = 0; z < l.small[0]; ++z)
        for (int64_t y = 0; y < l.small[1]; ++y)
          for (int64_t w = 0; w < l.small[2]; ++w)
            for (int64_t v = 0, keep = draw(0, 3) < kept; v < l.columns; ++v)
              s.at(v, n, a, z, y, w) *= T(keep);
  const Update update{double(draw(0, 2)), double(draw(1, 2))};

  Block6<T> out(l.weight_size(), -3, 3);
  const Block6<T> before = out;
  std::vector<double> squares(l.a * l.b * l.taps_in_all(), 0.0);
  for (int64_t n = 0; n < l.samples; ++n)
    for (int64_t v = 0; v < l.columns; ++v) {
      const auto g = gradients(l, s, x, v, n, false, false);
      for (size_t i = 0; i < g.size(); ++i) squares[i] += g[i] * g[i];
    }
  kernels<T>().sparse_squared_sum(context(), out.grid, update, s.view(), x.view(), l.taps);
  require_weight("sparse_squared_sum", l, out, before, update, squares);

  Block6<T> weight(l.weight_size(), -2, 2), pulled(l.large_size(l.columns, l.samples), -3, 3);
  Block6<T> sums(l.large_size(l.columns, l.samples), 0, 0);
  const Block6<T> old = pulled;
  l.each([&](const int64_t* t, const int64_t* u, const int64_t* k) {
    for (int64_t a = 0; a < l.a; ++a)
      for (int64_t b = 0; b < l.b; ++b)
        for (int64_t v = 0; v < l.columns; ++v)
          for (int64_t n = 0; n < l.samples; ++n)
            sums.at(v, n, b, u[0], u[1], u[2]) +=
                weight.at(0, a, b, k[0], k[1], k[2]) * s.at(v, n, a, t[0], t[1], t[2]);
  });
  kernels<T>().sparse_conv_input(context(), pulled.grid, update, s.view(), weight.view(), l.taps);
  require_each("sparse_conv_input", pulled, [&](auto... at) {
    return update.decay * old.at(at...) + update.scale * sums.at(at...);
  });
}
#endif

}  // namespace lapkernels
