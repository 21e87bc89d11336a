// D[a, b, k] = sum_n sum_t small[n, a, t] * large[n, window (b, k), t] with the layer's input
// squared.

template <class T, class F, class G>
void sum_of_products(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                     Grid<const T> large, Taps taps, F f, G g) {
  // Without Winograd: terms of one sign must stay of one sign, or small sums lose digits.
  const Correlation<T> p(small, large, taps, false);
  sum_over_units<T>(
      context, {out}, update, p,
      [&](BlockMaker<T>& maker, const Block& block, int64_t begin, int64_t end, T* const* totals) {
        maker.add(totals[0], small, large, block, begin, end, f, g);
      });
}

template <class T>
void squared_conv_weight(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                         Grid<const T> large, Taps taps, bool square_small) {
  if (square_small)
    sum_of_products<T>(context, out, update, small, large, taps, Square{}, Identity{});
  else
    sum_of_products<T>(context, out, update, small, large, taps, Identity{}, Square{});
}
