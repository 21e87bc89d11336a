// The diagonal of a chain of layers with activations between them, from its last layer to its
// first, and the gradient on the same way. Included by isa_kernels.h inside namespace
// lapkernels::LAPKERNELS_ISA.
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

// A convolution and what goes through it: what its weight and what is below it gets.
template <class T, bool kSquared>
void conv_step(const Context& context, const ChainLayer<T>& layer, const Grid<const T>& s,
               const Grid<T>& weight, const Grid<T>& input) {
  constexpr Update fresh{0, 1};
  const Grid<const T>&small = layer.transposed ? layer.x : s,
                   &large = layer.transposed ? s : layer.x;
  if (weight.data) {
    if constexpr (kSquared)
      squared_conv_weight<T>(context, weight, fresh, small, large, layer.taps, layer.transposed);
    else
      conv_weight<T>(context, weight, fresh, small, large, layer.taps);
  }
  if (!input.data) return;
  if constexpr (kSquared)
    squared_conv_input<T>(context, input, fresh, s, layer.weight, layer.taps, layer.transposed,
                          layer.z, layer.activation, layer.slope);
  else
    conv_input<T>(context, input, fresh, s, layer.weight, nullptr, layer.taps, layer.transposed,
                  layer.z, layer.activation, layer.slope);
}

template <class T>
Grid<const T> read_only(const Grid<T>& grid) {
  Grid<const T> found{grid.data, {}, {}};
  std::copy(grid.size, grid.size + 6, found.size);
  std::copy(grid.stride, grid.stride + 6, found.stride);
  return found;
}

template <class T>
void layer_chain(const Context& context, Grid<const T> m, Grid<const T> g,
                 std::span<const ChainLayer<T>> layers) {
  const size_t ways = g.data ? 2 : 1;
  Grid<const T> s[2] = {m, g};
  for (const ChainLayer<T>& layer : layers) {
    const Grid<T> weights[2] = {layer.weight_squares, layer.weight_gradient};
    const Grid<T> inputs[2] = {layer.m, layer.g};
    T* const biases[2] = {layer.bias_squares, layer.bias_gradient};
    for (size_t k = 0; k < ways; ++k)
      if (biases[k])
        layer.linear ? row_sums<T>(biases[k], s[k]) : channel_sums<T>(context, biases[k], s[k]);
    if (layer.linear) {
      const Flow<T> to_weight[2] = {{s[0], weights[0], true}, {s[1], weights[1], false}};
      const Flow<T> to_input[2] = {{s[0], inputs[0], true}, {s[1], inputs[1], false}};
      if (weights[0].data) linear_weight<T>(context, {to_weight, ways}, layer.x);
      if (inputs[0].data)
        linear_input<T>(context, {to_input, ways}, layer.weight, layer.z, layer.activation,
                        layer.slope);
    } else {
      conv_step<T, true>(context, layer, s[0], weights[0], inputs[0]);
      if (g.data) conv_step<T, false>(context, layer, s[1], weights[1], inputs[1]);
    }
    for (size_t k = 0; k < ways; ++k) s[k] = read_only(inputs[k]);
  }
}
