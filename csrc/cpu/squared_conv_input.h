// Convolution with the squared kernel, towards a layer's input, times a squared activation slope:
// the sums of convolve.h with f(w) = w². Included by isa_kernels.h inside namespace
// lapkernels::LAPKERNELS_ISA.

template <class T>
void squared_conv_input(const Context& context, Grid<T> out, Update update, Grid<const T> m,
                        Grid<const T> weight, Taps taps, bool transposed, Grid<const T> z,
                        Activation activation, double slope) {
  with_activation(activation, [&]<Activation kind>() {
    convolve<T>(context, out, m, weight, taps, transposed, Square{},
                [&](int64_t n, int64_t c, const int64_t u[3], int64_t step, const T* values,
                    int64_t count) {
                  const T* slopes = kind == Activation::identity ? nullptr : place(z, n, c, u);
                  write_row<T, kind, true>(place(out, n, c, u), out.stride[5] * step, update,
                                           values, slopes, z.stride[5] * step, count, T(slope));
                });
  });
}
