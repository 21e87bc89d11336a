// D[a, b, k] = sum_{n, v} G[v, n, a, b, k]^2.
//
// Parallel over blocks of the weight, each of which visits all samples and columns in order; where
// the weight is small, over fixed runs of samples and columns, whose sums are added in order.
// Either way the bits do not depend on the number of threads.

template <class T>
struct AddSquares {
  T* total;
  template <int C>
  void operator()(int64_t at, int64_t pitch, const Reg<T> (&g)[C]) {
    for (int i = 0; i < C; ++i, at += pitch) store(total + at, load(total + at) + g[i] * g[i]);
  }
};

template <class T>
void jacobian_squared_sum(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                          Grid<const T> large, Taps taps) {
  const Correlation<T> problem(small, large, taps);
  sum_over_units<T>(
      context, {out}, update, problem,
      [&](BlockMaker<T>& maker, const Block& block, int64_t begin, int64_t end, T* const* totals) {
        AddSquares<T> sink{totals[0]};
        for (int64_t unit = begin; unit < end; ++unit)
          maker.visit(block, unit / problem.columns, unit % problem.columns, sink);
      });
}
