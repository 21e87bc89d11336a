// The diagonal of a chain of layers with activations between them, from its last layer to its
// first, and the gradient on the same way. Included by isa_kernels.h inside namespace
// lapkernels::LAPKERNELS_ISA.
//
//   D = sum_n sum_t m_t x_t^2,   m <- phi'(z)^2 (W∘W)^T m        and        sum g x,   g <- phi'(z)
//   W^T g

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

template <class T, bool kSquared>
void layer_step(const Context& context, const ChainLayer<T>& layer, const Grid<const T>& s,
                const Grid<T>& weight, T* bias, const Grid<T>& input) {
  constexpr Update fresh{0, 1};
  const Grid<const T>&small = layer.transposed ? layer.x : s,
                   &large = layer.transposed ? s : layer.x;
  if (weight.data) {
    if (layer.linear)
      linear_weight<T, kSquared>(context, weight, s, layer.x);
    else if constexpr (kSquared)
      squared_conv_weight<T>(context, weight, fresh, small, large, layer.taps, layer.transposed);
    else
      conv_weight<T>(context, weight, fresh, small, large, layer.taps);
  }
  if (bias) channel_sums<T>(context, bias, s);
  if (!input.data) return;
  if (layer.linear)
    linear_input<T, kSquared>(context, input, s, layer.weight, layer.z, layer.activation,
                              layer.slope);
  else if constexpr (kSquared)
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
  for (const ChainLayer<T>& layer : layers) {
    layer_step<T, true>(context, layer, m, layer.weight_squares, layer.bias_squares, layer.m);
    m = read_only(layer.m);
    if (!g.data) continue;
    layer_step<T, false>(context, layer, g, layer.weight_gradient, layer.bias_gradient, layer.g);
    g = read_only(layer.g);
  }
}
