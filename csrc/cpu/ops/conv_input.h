// Columns pulled back through a convolution, times an activation's slope, or its result with a
// bias: the sums of convolve.h with W itself.

template <class T>
void conv_input(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                Grid<const T> weight, const T* bias, Taps taps, bool transposed, Grid<const T> z,
                Activation activation, double slope) {
  const Stream<T> stream{s, result_of<T, false>(out, update, bias, z, activation, slope), false};
  convolve<T>(context, {&stream, 1}, weight, taps, transposed);
}
