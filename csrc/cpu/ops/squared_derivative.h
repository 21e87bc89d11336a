// out = m * phi'(z)^2 on contiguous memory, parallel over fixed stretches.

template <class T>
void squared_derivative(const Context& context, T* out, Update update, const T* m, const T* z,
                        int64_t size, Activation activation, double slope) {
  constexpr int64_t kStretch = 1 << 15;
  const Slopes<T> slopes(activation, slope, true);
  context.parallel_for(ceil_div(size, kStretch), [&](int64_t task) {
    const int64_t begin = task * kStretch, count = std::min(kStretch, size - begin);
    write_row<T>(out + begin, 1, update, m + begin, slopes, z + begin, 1, count);
  });
}
