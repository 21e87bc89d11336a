// C[n, v, v'] = sum_{a, b, k} G[v, n, a, b, k] * variance[a, b, k] * G[v', n, a, b, k].
//
// For one sample and one block of the weight, the block's values of all columns stand in cache side
// by side, and their products are taken there. Parallel over sets of samples; with few of them also
// over fixed shares of the blocks, whose sums are added in order. A single column is a squared dot.

template <class T>
struct Keep {
  T* values;
  template <int C>
  void operator()(int64_t at, int64_t pitch, const Reg<T> (&g)[C]) {
    for (int i = 0; i < C; ++i) store(values + at + i * pitch, g[i]);
  }
};

template <class T>
void jacobian_gram(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                   Grid<const T> large, Grid<const T> variance, Taps taps) {
  const Correlation<T> p(small, large, taps);
  const int64_t columns = p.columns;
  if (columns == 1) {
    const Grid<T> var{out.data, {1, 1, 1, 1, p.samples, 1}, {0, 0, 0, 0, out.stride[3], 0}};
    return jacobian_squared_dot(context, var, update, small, large, variance, taps);
  }
  // All columns of a block stand in cache at once, and leave some of it to what they are made from.
  const int64_t held = second_level_bytes() / 5 * 4 / sizeof(T) / columns;
  const Partition part = partition(p, std::clamp<int64_t>(held, 256, 2 * tuning::kBlockValues));
  const auto blocks = cut(taps.groups, p.rows, p.channels, part.rows, part.channels);
  constexpr int64_t kFew = 8;
  const int64_t shares = p.samples < kFew ? std::min<int64_t>(kFew, blocks.size()) : 1;
  std::vector<T> partial(shares * p.samples * columns * columns, T(0));
  const int64_t size = part.size();
  const Scratch<T> weights =
      gather_weights(context, variance.data, p, blocks, part.choice.layout, size);
  const int64_t sets = std::min(p.samples, 2 * context.threads);
  context.parallel_for(sets * shares, [&](int64_t task) {
    const int64_t share = task % shares;
    const auto [n0, n1] = run_range(p.samples, sets, task / shares);
    const auto [b0, b1] = run_range(blocks.size(), shares, share);
    BlockMaker<T> maker(p, part.rows, part.channels, part.choice);
    Scratch<T> values(columns * size);
    std::vector<int64_t> offsets(columns);
    for (int64_t v = 0; v < columns; ++v) offsets[v] = v * size;
    // Entries of all columns at a time that stay in the first-level cache.
    const int64_t piece =
        std::clamp<int64_t>(tuning::kGramBytes / (sizeof(T) * (columns + 1)) / 64 * 64, 256, 4096);
    for (int64_t n = n0; n < n1; ++n) {
      T* gram = partial.data() + (n * shares + share) * columns * columns;
      for (int64_t b = b0; b < b1; ++b) {
        for (int64_t v = 0; v < columns; ++v) {
          Keep<T> sink{values.data() + v * size};
          maker.visit(blocks[b], n, v, sink);
        }
        const int64_t count = part.choice.layout.size(blocks[b].rows(), blocks[b].channels());
        for (int64_t first = 0; first < count; first += piece)
          gram_rows(values.data() + first, size, offsets.data(), columns,
                    std::min(piece, count - first), weights.data() + b * size + first, gram);
      }
    }
  });
  for (int64_t n = 0; n < p.samples; ++n)
    for (int64_t v = 0; v < columns; ++v)
      for (int64_t w = 0; w < columns; ++w) {
        // Only the lower half was summed; its mirror keeps C symmetric to the bit.
        const int64_t low = std::max(v, w) * columns + std::min(v, w);
        T total = 0;
        for (int64_t share = 0; share < shares; ++share)
          total += partial[(n * shares + share) * columns * columns + low];
        T& at = out.data[n * out.stride[3] + v * out.stride[4] + w * out.stride[5]];
        at = (update.decay == 0 ? T(0) : T(update.decay) * at) + T(update.scale) * total;
      }
}
