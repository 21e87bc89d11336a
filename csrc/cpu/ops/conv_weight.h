// D[a, b, k] = sum_n sum_t small[n, a, t] * large[n, window (b, k), t]: the gradient of a weight,
// alone or with the sums of squared_conv_weight.h.

template <class T>
void conv_weight(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                 Grid<const T> large, Taps taps) {
  sum_of_products<T>(context, out, update, small, large, taps, Identity{}, Identity{});
}

// squares = sum m x^2, sums = sum g x; x is `small` of a transposed layer.
template <class T>
void conv_weights(const Context& context, const Grid<T>& squares, const Grid<T>& sums,
                  const Grid<const T>& m, const Grid<const T>& g, const Grid<const T>& x,
                  const Taps& taps, bool transposed) {
  const Correlation<T> p(transposed ? x : m, transposed ? m : x, taps, false);
  sum_over_units<T>(
      context, {squares, sums}, {0, 1}, p,
      [&](BlockMaker<T>& maker, const Block& block, int64_t begin, int64_t end, T* const* totals) {
        if (transposed) {
          maker.add(totals[0], x, m, block, begin, end, Square{}, Identity{});
          maker.add(totals[1], x, g, block, begin, end, Identity{}, Identity{});
        } else {
          maker.add(totals[0], m, x, block, begin, end, Identity{}, Square{});
          maker.add(totals[1], g, x, block, begin, end, Identity{}, Identity{});
        }
      });
}
