// Columns pulled back through a convolution: the sums of convolve.h with W itself.

template <class T>
void conv_input(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                Grid<const T> weight, Taps taps, bool transposed) {
  const auto result = result_of<T, false>(out, update, s, Activation::identity, 0);
  const Stream<T> stream{s, result, false};
  convolve<T>(context, {&stream, 1}, weight, taps, transposed);
}
