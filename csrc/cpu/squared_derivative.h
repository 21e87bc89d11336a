// out = m * phi'(z)^2 on contiguous memory, parallel over fixed stretches.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.

template <class T>
void squared_derivative(const Context& context, T* out, Update update, const T* m, const T* z,
                        int64_t size, Activation activation, double slope) {
  constexpr int64_t kStretch = 1 << 15;
  with_activation(activation, [&]<Activation kind>() {
    context.parallel_for(ceil_div(size, kStretch), [&](int64_t task) {
      const int64_t begin = task * kStretch, end = std::min(size, begin + kStretch);
      const T scale = update.scale, decay = update.decay, s = slope;
      if (update.decay == 0)
        for (int64_t i = begin; i < end; ++i)
          out[i] = scale * m[i] * squared_slope<T, kind>(z[i], s);
      else
        for (int64_t i = begin; i < end; ++i)
          out[i] = decay * out[i] + scale * m[i] * squared_slope<T, kind>(z[i], s);
    });
  });
}
