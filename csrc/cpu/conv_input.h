// Columns pulled back through a convolution, times an activation's slope, or its result with a
// bias: the sums of convolve.h with W itself. Included by isa_kernels.h inside namespace
// lapkernels::LAPKERNELS_ISA.

template <class T>
void conv_input(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                Grid<const T> weight, const T* bias, Taps taps, bool transposed, Grid<const T> z,
                Activation activation, double slope) {
  with_activation(activation, [&]<Activation kind>() {
    convolve<T>(context, out, s, weight, taps, transposed, Identity{},
                [&](int64_t n, int64_t c, const int64_t u[3], int64_t step, const T* values,
                    int64_t count) {
                  const T* slopes = kind == Activation::identity ? nullptr : place(z, n, c, u);
                  write_row<T, kind, false>(place(out, n, c, u), out.stride[5] * step, update,
                                            values, slopes, z.stride[5] * step, count, T(slope),
                                            bias ? bias[c] : T(0));
                });
  });
}
