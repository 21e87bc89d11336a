// D[a, b, k] = sum_n sum_t small[n, a, t] * large[n, window (b, k), t] with the layer's input
// squared. Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// All terms have one sign, and so must every sum on the way: small results stay accurate.

template <class T>
void squared_conv_weight(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                         Grid<const T> large, Taps taps, bool square_small) {
  const Correlation<T> problem(small, large, taps, false);
  sum_over_units<T>(
      context, out, update, problem,
      [&](BlockMaker<T>& maker, T* g, const Block& block, int64_t n, int64_t v, T* total) {
        if (square_small)
          maker.make(g, block, n, v, Square{}, Identity{});
        else
          maker.make(g, block, n, v, Identity{}, Square{});
        const int64_t size = maker.size(block);
        for (int64_t i = 0; i < size; ++i) total[i] += g[i];
      });
}
