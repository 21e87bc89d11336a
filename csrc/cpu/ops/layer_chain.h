// The diagonal of a chain of layers with activations between them, from its last layer to its
// first, and the gradient on the same way.
//
//   D = sum_n sum_t m_t x_t^2,   m <- phi'(z)^2 (W∘W)^T m        and        sum g x,   g <- phi'(z)
//   W^T g

// out[o] = sum over rows of s[n, o], in double.
template <class T>
void row_sums(T* out, const Grid<const T>& s) {
  constexpr int64_t kFew = 64;
  for (int64_t o = 0; o < s.size[2]; o += kFew) {
    const int64_t count = std::min(kFew, s.size[2] - o), step = s.stride[2];
    double total[kFew] = {};
    for (int64_t n = 0; n < s.size[1]; ++n) {
      const T* row = s.data + n * s.stride[1] + o * step;
      for (int64_t q = 0; q < count; ++q) total[q] += row[q * step];
    }
    std::copy_n(total, count, out + o);
  }
}

// out[c] = sum over samples and positions of s[n, c, t], lanes of a row in float, rows in double.
template <class T>
void channel_sums(const Context& context, T* out, const Grid<const T>& s) {
  context.parallel_for(s.size[2], [&](int64_t c) {
    double total = 0;
    for (int64_t n = 0; n < s.size[1]; ++n)
      for (int64_t z = 0; z < s.size[3]; ++z)
        for (int64_t y = 0; y < s.size[4]; ++y) {
          const int64_t u[3] = {z, y, 0}, count = s.size[5], step = s.stride[5];
          const T* row = place(s, n, c, u);
          int64_t x = 0;
          if (step == 1) {
            Reg<T> lanes = {};
            for (; x + kWidth<T> <= count; x += kWidth<T>) lanes += load(row + x);
            total += sum<T>(lanes);
          }
          for (; x < count; ++x) total += row[x * step];
        }
    out[c] = static_cast<T>(total);
  });
}

template <class T>
Grid<const T> read_only(const Grid<T>& grid) {
  Grid<const T> found{grid.data, {}, {}};
  std::copy(grid.size, grid.size + 6, found.size);
  std::copy(grid.stride, grid.stride + 6, found.stride);
  return found;
}

// What goes through a layer: a diagonal m and perhaps a gradient g, and where their shares go.
template <class T>
struct Ways {
  size_t count;
  Grid<const T> s[2];
  Grid<T> weights[2], inputs[2];
  T* biases[2];
};

template <class T>
void linear_step(const Context& context, const ChainLayer<T>& layer, const Ways<T>& ways) {
  const auto& [count, s, weights, inputs, biases] = ways;
  const Flow<T> to_weight[2] = {{s[0], weights[0], true}, {s[1], weights[1], false}};
  const Flow<T> to_input[2] = {{s[0], inputs[0], true}, {s[1], inputs[1], false}};
  for (size_t k = 0; k < count; ++k)
    if (biases[k]) row_sums<T>(biases[k], s[k]);
  if (weights[0].data) linear_weight<T>(context, {to_weight, count}, layer.x);
  if (inputs[0].data)
    linear_input<T>(context, {to_input, count}, layer.weight, layer.z, layer.activation,
                    layer.slope);
}

template <class T>
void conv_step(const Context& context, const ChainLayer<T>& layer, const Ways<T>& ways) {
  constexpr Update fresh{0, 1};
  const auto& [count, s, weights, inputs, biases] = ways;
  for (size_t k = 0; k < count; ++k)
    if (biases[k]) channel_sums<T>(context, biases[k], s[k]);
  if (weights[0].data && count == 2)
    conv_weights<T>(context, weights[0], weights[1], s[0], s[1], layer.x, layer.taps,
                    layer.transposed);
  else if (weights[0].data)
    squared_conv_weight<T>(context, weights[0], fresh, layer.transposed ? layer.x : s[0],
                           layer.transposed ? s[0] : layer.x, layer.taps, layer.transposed);
  if (!inputs[0].data) return;
  const Stream<T> streams[2] = {
      {s[0], inputs[0], fresh, layer.z, layer.activation, layer.slope, true},
      {s[1], inputs[1], fresh, layer.z, layer.activation, layer.slope, false}};
  convolve<T>(context, {streams, count}, layer.weight, layer.taps, layer.transposed);
}

template <class T>
void layer_chain(const Context& context, Grid<const T> m, Grid<const T> g,
                 std::span<const ChainLayer<T>> layers) {
  for (const ChainLayer<T>& layer : layers) {
    const Ways<T> ways{g.data ? size_t(2) : size_t(1),
                       {m, g},
                       {layer.weight_squares, layer.weight_gradient},
                       {layer.m, layer.g},
                       {layer.bias_squares, layer.bias_gradient}};
    layer.linear ? linear_step(context, layer, ways) : conv_step(context, layer, ways);
    m = read_only(layer.m);
    if (g.data) g = read_only(layer.g);
  }
}
