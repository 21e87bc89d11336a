// var[n, v] = sum_{a, b, k} variance[a, b, k] * G[v, n, a, b, k]^2.
//
// Parallel over sets of samples and runs of columns; with few of them also over fixed shares of the
// weight's blocks, whose sums are added in order.

template <class T>
struct WeightedSquares {
  const T* weight;
  Reg<T> lanes = {};
  template <int C>
  void operator()(int64_t at, int64_t pitch, const Reg<T> (&g)[C]) {
    // On their own first: one chain of sums would be longer than all else.
    Reg<T> few = load(weight + at) * g[0] * g[0];
    for (int i = 1; i < C; ++i) few += load(weight + at + i * pitch) * g[i] * g[i];
    lanes += few;
  }
  T total() const { return sum<T>(lanes); }
};

template <class T>
void jacobian_squared_dot(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                          Grid<const T> large, Grid<const T> variance, Taps taps) {
  const Correlation<T> p(small, large, taps);
  constexpr int64_t kFew = 16;
  const int64_t units = p.samples * p.columns;
  // Winograd holds no values beside the weights, so that its blocks may be large; but few samples
  // are shared block by block.
  const Partition part = partition(
      p, may_transform(p) && units >= kFew ? 4 * tuning::kBlockValues : tuning::kBlockValues);
  const auto blocks = cut(taps.groups, p.rows, p.channels, part.rows, part.channels);
  const int64_t shares = units < kFew ? std::min<int64_t>(8, blocks.size()) : 1;
  // All samples of a set meet a block of the weight while it is in the second-level cache.
  const int64_t sets = std::min(p.samples, 2 * context.threads);
  const int64_t runs = p.samples < 2 * context.threads ? std::min(p.columns, context.threads) : 1;
  std::vector<T> partial(units * shares, T(0));
  const Scratch<T> weights =
      gather_weights(context, variance.data, p, blocks, part.choice.layout, part.size());
  context.parallel_for(sets * runs * shares, [&](int64_t task) {
    const int64_t share = task % shares, run = task / shares % runs, set = task / shares / runs;
    const auto [n0, n1] = run_range(p.samples, sets, set);
    const auto [v0, v1] = run_range(p.columns, runs, run);
    const auto [b0, b1] = run_range(blocks.size(), shares, share);
    BlockMaker<T> maker(p, part.rows, part.channels, part.choice);
    for (int64_t b = b0; b < b1; ++b)
      for (int64_t n = n0; n < n1; ++n)
        for (int64_t v = v0; v < v1; ++v) {
          WeightedSquares<T> sink{weights.data() + b * part.size()};
          maker.visit(blocks[b], n, v, sink);
          partial[(n * p.columns + v) * shares + share] += sink.total();
        }
  });
  for (int64_t unit = 0; unit < units; ++unit) {
    T total = 0;
    for (int64_t share = 0; share < shares; ++share) total += partial[unit * shares + share];
    T& at = out.data[unit / p.columns * out.stride[4] + unit % p.columns * out.stride[5]];
    at = (update.decay == 0 ? T(0) : T(update.decay) * at) + T(update.scale) * total;
  }
}
