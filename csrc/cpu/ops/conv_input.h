// Columns pulled back through a convolution: the sums of convolve.h with W itself.

template <class T>
void conv_input(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                Grid<const T> weight, Taps taps, bool transposed) {
  const Stream<T> stream(s, out, update, s, Activation::identity, 0, false);
  convolve<T>(context, {&stream, 1}, weight, taps, transposed);
}
