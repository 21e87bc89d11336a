// var[n, v] = sum_{a, b, k} variance[a, b, k] * G[v, n, a, b, k]^2.
//
// Parallel over sets of samples and runs of columns; with few of them also over fixed shares of the
// weight's blocks, whose sums are added in order.

// A block of the contiguous weight [A, B / groups, k], laid out like the block's values. What lies
// between them is not written.
template <class T>
void gather_weight(T* to, const T* weight, const Correlation<T>& p, const Block& block,
                   const Layout& layout) {
  const int64_t pitch = p.channels * p.kernel, width = block.channels() * p.kernel;
  const T* from = weight + (block.group * p.rows + block.a0) * pitch + block.b0 * p.kernel;
  if (layout.row == 1) return interleave(to, layout.tap, from, 1, pitch, block.rows(), width);
  for (int64_t r = 0; r < block.rows(); ++r, to += layout.row, from += pitch)
    if (layout.tap == 1 && layout.line == p.taps.kernel[2])
      std::copy(from, from + width, to);
    else
      layout.each_run(p.taps, [&](int64_t first, int64_t count, int64_t place) {
        if (layout.channel == 1)
          return interleave(to + place, layout.tap, from + first, 1, p.kernel, block.channels(),
                            count);
        for (int64_t b = 0; b < block.channels(); ++b)
          for (int64_t k = 0; k < count; ++k)
            to[place + b * layout.channel + k * layout.tap] = from[b * p.kernel + first + k];
      });
}

// The whole weight, block after block in the blocks' own layout: gathered once for all samples.
template <class T>
class GatheredWeight {
 public:
  GatheredWeight(const Context& context, const T* weight, const Correlation<T>& p,
                 const std::vector<Block>& blocks, const Layout& layout, int64_t size)
      : size_(size), storage_(count(blocks, size), count(blocks, size)) {
    context.parallel_for(blocks.size(), [&](int64_t b) {
      T* to = storage_.data() + b * size_;
      std::fill(to, to + size_, T(0));
      gather_weight(to, weight, p, blocks[b], layout);
    });
  }
  const T* block(int64_t b) { return storage_.data() + b * size_; }

 private:
  static int64_t count(const std::vector<Block>& blocks, int64_t size) {
    return size * static_cast<int64_t>(blocks.size());
  }

  int64_t size_;
  Scratch<T> storage_;
};

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
  // Tiles hold no values beside the weights, so that their blocks may be large; but few samples are
  // shared block by block.
  const Partition part =
      partition(p, has_tiling(p) && units >= kFew ? 4 * kBlockValues : kBlockValues);
  const auto blocks = cut(taps.groups, p.rows, p.channels, part.rows, part.channels);
  const int64_t shares = units < kFew ? std::min<int64_t>(8, blocks.size()) : 1;
  // All samples of a set meet a block of the weight while it is in the second-level cache.
  const int64_t sets = std::min(p.samples, 2 * context.threads);
  const int64_t runs = p.samples < 2 * context.threads ? std::min(p.columns, context.threads) : 1;
  std::vector<T> partial(units * shares, T(0));
  GatheredWeight<T> weights(context, variance.data, p, blocks, part.choice.layout, part.size());
  context.parallel_for(sets * runs * shares, [&](int64_t task) {
    const int64_t share = task % shares, run = task / shares % runs, set = task / shares / runs;
    const auto [n0, n1] = run_range(p.samples, sets, set);
    const auto [v0, v1] = run_range(p.columns, runs, run);
    const auto [b0, b1] = run_range(blocks.size(), shares, share);
    BlockMaker<T> maker(p, part.rows, part.channels, part.choice);
    Scratch<T> values(part.choice.way == Way::tiles ? 0 : part.size());
    for (int64_t b = b0; b < b1; ++b)
      for (int64_t n = n0; n < n1; ++n)
        for (int64_t v = v0; v < v1; ++v) {
          WeightedSquares<T> sink{weights.block(b)};
          maker.visit(values.data(), blocks[b], n, v, sink);
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
