// Convolution with the squared kernel, towards a layer's input, times a squared activation slope:
// the sums of convolve.h with W².

template <class T>
void squared_conv_input(const Context& context, Grid<T> out, Update update, Grid<const T> m,
                        Grid<const T> weight, Taps taps, bool transposed, Grid<const T> z,
                        Activation activation, double slope) {
  const Stream<T> stream(m, out, update, z, activation, slope, true);
  convolve<T>(context, {&stream, 1}, weight, taps, transposed);
}
