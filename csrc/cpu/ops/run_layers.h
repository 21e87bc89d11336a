// Layers one after the other, each with the activation behind it: x <- phi(layer(x)).
//
//   linear:  y[n, o] = phi(bias[o] + sum_i x[n, i] W[o, i])    parallel over blocks of o
//   conv:    the sums of convolve.h, of few channels, with phi where they are written

template <class T, Activation kind>
inline T activated(T z) {
  if constexpr (kind == Activation::relu) return z <= 0 ? T(0) : z;
  if constexpr (kind == Activation::tanh) return tanh_of(z);
  return z;
}

// Calls body.template operator()<kind>() for an activation that may follow a layer.
template <class Body2>
void with_forward_activation(Activation kind, Body2 body) {
  switch (kind) {
    case Activation::relu:
      return body.template operator()<Activation::relu>();
    case Activation::tanh:
      return body.template operator()<Activation::tanh>();
    default:
      return body.template operator()<Activation::identity>();
  }
}

// R x C dot products of rows of x and of W, at least one vector long.
template <class T, int R, int C>
[[gnu::noinline]] void dot_tile(const T* x, int64_t x_row, const T* w, int64_t w_row, int64_t count,
                                const T* bias, T* z, int64_t z_row) {
  Reg<T> acc[R][C] = {};
  int64_t i = 0;
  do {
    Reg<T> columns[C];
    for (int c = 0; c < C; ++c) columns[c] = load(w + c * w_row + i);
    for (int r = 0; r < R; ++r) {
      const Reg<T> row = load(x + r * x_row + i);
      for (int c = 0; c < C; ++c) acc[r][c] += row * columns[c];
    }
    i += kWidth<T>;
  } while (i + kWidth<T> <= count);
  for (int r = 0; r < R; ++r) {
    T sums[C];
    sum_each<C>(acc[r], sums);
    for (int c = 0; c < C; ++c) {
      T rest = bias ? bias[c] : T(0);
      for (int64_t j = i; j < count; ++j) rest += x[r * x_row + j] * w[c * w_row + j];
      z[r * z_row + c] = sums[c] + rest;
    }
  }
}

// A few rows of the weight stay in the cache for all samples.
template <class T>
void linear(const Context& context, const ForwardLayer<T>& layer, const Grid<const T>& x) {
  constexpr int kRows = kManyRegisters ? 4 : 3, kColumns = kManyRegisters ? 6 : 4;
  constexpr int64_t kBlock = 4 * kColumns;
  const Grid<const T>& weight = layer.weight;
  const Grid<T>& y = layer.out;
  const int64_t samples = x.size[1], inputs = x.size[2], outputs = y.size[2];
  auto tile = [&]<int R, int C>(int64_t n, int64_t o) {
    const T *row = x.data + n * x.stride[1], *w = weight.data + o * weight.stride[1];
    const T* bias = layer.bias ? layer.bias + o : nullptr;
    T* to = y.data + n * y.stride[1] + o;
    if (inputs >= kWidth<T>)
      return dot_tile<T, R, C>(row, x.stride[1], w, weight.stride[1], inputs, bias, to,
                               y.stride[1]);
    for (int r = 0; r < R; ++r, row += x.stride[1], to += y.stride[1])
      for (int c = 0; c < C; ++c) {
        to[c] = bias ? bias[c] : T(0);
        for (int64_t i = 0; i < inputs; ++i) to[c] += row[i] * w[c * weight.stride[1] + i];
      }
  };
  auto all_samples = [&]<int C>(int64_t o) {
    int64_t n = 0;
    for (; n + kRows <= samples; n += kRows) tile.template operator()<kRows, C>(n, o);
    for (; n < samples; ++n) tile.template operator()<1, C>(n, o);
  };
  with_forward_activation(layer.activation, [&]<Activation kind>() {
    context.parallel_for(ceil_div(outputs, kBlock), [&](int64_t task) {
      const int64_t first = task * kBlock, end = std::min(outputs, first + kBlock);
      int64_t o = first;
      for (; o + kColumns <= end; o += kColumns) all_samples.template operator()<kColumns>(o);
      for (; o < end; ++o) all_samples.template operator()<1>(o);
      for (int64_t n = 0; n < samples; ++n) {
        T* row = y.data + n * y.stride[1];
        for (o = first; o < end; ++o) row[o] = activated<T, kind>(row[o]);
      }
    });
  });
}

// out <- phi(value + shift) along a row.
template <class T, Activation kind>
void write_activated(T* out, int64_t stride, const T* value, int64_t count, T shift) {
  if (stride == 1)
    for (int64_t x = 0; x < count; ++x) out[x] = activated<T, kind>(value[x] + shift);
  else
    for (int64_t x = 0; x < count; ++x) out[x * stride] = activated<T, kind>(value[x] + shift);
}

template <class T>
void run_layers(const Context& context, Grid<const T> x, std::span<const ForwardLayer<T>> layers) {
  for (const ForwardLayer<T>& layer : layers) {
    if (layer.linear) {
      linear<T>(context, layer, x);
    } else {
      Stream<T> stream{x, {layer.out, {0, 1}, layer.bias, x, {}}, false};
      with_forward_activation(layer.activation, [&]<Activation kind>() {
        stream.result.activate = &write_activated<T, kind>;
      });
      convolve<T>(context, {&stream, 1}, layer.weight, layer.taps, !layer.transposed);
    }
    x = read_only(layer.out);
  }
}
