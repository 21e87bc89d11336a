// The diagonal of a chain of layers with activations between them, from its last layer to its
// first, and the gradient with it.
//
//   D = sum_n sum_t m_t x_t^2,   m <- phi'(z)^2 (W∘W)^T m
//       sum_n sum_t g_t x_t,     g <- phi'(z) W^T g

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
          const T* row = address(s, n, c, u);
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

template <class T>
void linear_step(const Context& context, const ChainLayer<T>& layer,
                 std::span<const Flow<T>> flows) {
  for (const Flow<T>& flow : flows)
    if (flow.bias) row_sums<T>(flow.bias, flow.s);
  if (flows[0].weight.data) linear_weight<T>(context, flows, layer.x);
  if (flows[0].input.data)
    linear_input<T>(context, flows, layer.weight, layer.z, layer.activation, layer.slope);
}

template <class T>
void conv_step(const Context& context, const ChainLayer<T>& layer, std::span<const Flow<T>> flows) {
  constexpr Update fresh{0, 1};
  for (const Flow<T>& flow : flows)
    if (flow.bias) channel_sums<T>(context, flow.bias, flow.s);
  const Grid<const T>&m = flows[0].s, &x = layer.x;
  if (flows[0].weight.data && flows.size() == 2)
    conv_weights<T>(context, flows[0].weight, flows[1].weight, m, flows[1].s, x, layer.taps,
                    layer.transposed);
  else if (flows[0].weight.data)
    squared_conv_weight<T>(context, flows[0].weight, fresh, layer.transposed ? x : m,
                           layer.transposed ? m : x, layer.taps, layer.transposed);
  if (!flows[0].input.data) return;
  std::vector<Stream<T>> streams;
  for (const Flow<T>& flow : flows)
    streams.emplace_back(flow.s, flow.input, fresh, layer.z, layer.activation, layer.slope,
                         flow.squared);
  convolve<T>(context, streams, layer.weight, layer.taps, layer.transposed);
}

template <class T>
void layer_chain(const Context& context, Grid<const T> m, Grid<const T> g,
                 std::span<const ChainLayer<T>> layers) {
  for (const ChainLayer<T>& layer : layers) {
    const Flow<T> both[2] = {{m, true, layer.weight_squares, layer.m, layer.bias_squares},
                             {g, false, layer.weight_gradient, layer.g, layer.bias_gradient}};
    const std::span<const Flow<T>> flows(both, g.data ? 2 : 1);
    layer.linear ? linear_step(context, layer, flows) : conv_step(context, layer, flows);
    m = read_only(layer.m);
    if (g.data) g = read_only(layer.g);
  }
}
