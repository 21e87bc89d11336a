// var[n, v] = sum_{a, b, k} variance[a, b, k] * G[v, n, a, b, k]^2.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// Parallel over samples and runs of columns; with few of them also over fixed shares of the
// weight's blocks, whose sums are added in order.

// First entry of a block's row in a contiguous weight [A, B / groups, k].
template <class T>
const T* weight_row(const T* weight, const Correlation<T>& p, const Block& block, int64_t row) {
  return weight + ((block.group * p.rows + block.a0 + row) * p.channels + block.b0) * p.kernel;
}

template <class T>
void jacobian_squared_dot(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                          Grid<const T> large, Grid<const T> variance, Taps taps) {
  const Correlation<T> p(small, large, taps);
  const Partition part = partition(p, 1, kBlockValues);
  const auto blocks = cut(taps.groups, p.rows, p.channels, part.rows, part.channels);
  constexpr int64_t kFew = 16;
  const int64_t units = p.samples * p.columns;
  const int64_t shares = units < kFew ? std::min<int64_t>(8, blocks.size()) : 1;
  const int64_t runs = p.samples >= 2 * context.threads ? 1 : std::min(p.columns, context.threads);
  std::vector<T> partial(units * shares, T(0));
  context.parallel_for(p.samples * runs * shares, [&](int64_t task) {
    const int64_t share = task % shares, run = task / shares % runs, n = task / shares / runs;
    const auto [v0, v1] = run_range(p.columns, runs, run);
    const auto [b0, b1] = run_range(blocks.size(), shares, share);
    BlockMaker<T> maker(p, part.rows, part.channels);
    for (int64_t b = b0; b < b1; ++b)
      for (int64_t v = v0; v < v1; ++v) {
        maker.make(blocks[b], n, v, false, Identity{}, Identity{});
        const int64_t width = blocks[b].channels() * p.kernel;
        T total = 0;
        for (int64_t r = 0; r < blocks[b].rows(); ++r) {
          const T* g = maker.values() + r * maker.pitch();
          const T* weight = weight_row(variance.data, p, blocks[b], r);
          Reg<T> lanes{};
          int64_t j = 0;
          for (; j + kWidth<T> <= width; j += kWidth<T>) {
            const Reg<T> value = load(g + j);
            lanes += load(weight + j) * value * value;
          }
          total += sum<T>(lanes);
          for (; j < width; ++j) total += weight[j] * g[j] * g[j];
        }
        partial[(n * p.columns + v) * shares + share] += total;
      }
  });
  for (int64_t unit = 0; unit < units; ++unit) {
    T total = 0;
    for (int64_t share = 0; share < shares; ++share) total += partial[unit * shares + share];
    T& at = out.data[unit / p.columns * out.stride[4] + unit % p.columns * out.stride[5]];
    at = (update.decay == 0 ? T(0) : T(update.decay) * at) + T(update.scale) * total;
  }
}
