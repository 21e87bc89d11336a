// D[a, b, k] = sum_n sum_t small[n, a, t] * large[n, window (b, k), t]: the gradient of a weight.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.

template <class T>
void conv_weight(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                 Grid<const T> large, Taps taps) {
  sum_of_products<T>(context, out, update, small, large, taps, Identity{}, Identity{});
}
