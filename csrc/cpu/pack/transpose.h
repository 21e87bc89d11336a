// Copies and transposes of lines, with a function applied to the entries.

// What may be done to entries as they are copied.
struct Identity {
  template <class T>
  T operator()(T x) const {
    return x;
  }
};
struct Square {
  template <class T>
  T operator()(T x) const {
    return x * x;
  }
};

// dst[i] = f(src[i]) for i < count, by vectors of so many bytes, the last of which overlaps the one
// before it; of a short row by smaller ones.
template <int kBytes = kVectorBytes, class T, class F>
inline void copy_dense(T* dst, const T* src, int64_t count, F f) {
  constexpr int64_t kEntries = kBytes / sizeof(T);
  if constexpr (kEntries == 1) {
    if (count > 0) *dst = f(*src);
  } else {
    if (count < kEntries) return copy_dense<kBytes / 2>(dst, src, count, f);
    typedef T Part __attribute__((vector_size(kBytes), aligned(sizeof(T)), may_alias));
    auto copy = [&](int64_t i) {
      *reinterpret_cast<Part*>(dst + i) = f(*reinterpret_cast<const Part*>(src + i));
    };
    for (int64_t i = 0; i < count - kEntries; i += kEntries) copy(i);
    copy(count - kEntries);
  }
}

// dst[i] = f(src[i * stride]) for i < count.
template <class T, class F>
inline void copy_row(T* dst, const T* src, int64_t count, int64_t stride, F f) {
  if (stride == 1) return copy_dense(dst, src, count, f);
  for (int64_t i = 0; i < count; ++i) dst[i] = f(src[i * stride]);
}

// Four lines of four values: to[x * to_step + c] = f(from[offsets[c] + x]).
template <class F>
inline void transpose_four(float* to, int64_t to_step, const float* from, const int64_t offsets[4],
                           F f) {
  typedef Quarter<float>::Reg Q;
  Q q[4];
  for (int c = 0; c < 4; ++c) {
    __builtin_memcpy(&q[c], from + offsets[c], sizeof(Q));
    q[c] = f(q[c]);
  }
  const Q a = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5);
  const Q b = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5);
  const Q c = __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7);
  const Q d = __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
  const Q out[4] = {
      __builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
      __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  for (int x = 0; x < 4; ++x) __builtin_memcpy(to + x * to_step, &out[x], sizeof(Q));
}
template <class F>
inline void transpose_four(double* to, int64_t to_step, const double* from,
                           const int64_t offsets[4], F f) {
  for (int x = 0; x < 4; ++x)
    for (int c = 0; c < 4; ++c) to[x * to_step + c] = f(from[offsets[c] + x]);
}

// The same of eight lines, for sets whose vectors hold eight values.
template <class T, class F>
inline void transpose_eight(T* to, int64_t to_step, const T* from, const int64_t offsets[8], F f) {
  typedef typename Quarter<T>::Reg Q;
  typedef T H __attribute__((vector_size(32), aligned(4), may_alias));
  Q q[8];
  for (int c = 0; c < 8; ++c) {
    __builtin_memcpy(&q[c], from + offsets[c], sizeof(Q));
    q[c] = f(q[c]);
  }
  // Lines c and c + 4 in one vector.
  const auto h0 = __builtin_shufflevector(q[0], q[4], 0, 1, 2, 3, 4, 5, 6, 7);
  const auto h1 = __builtin_shufflevector(q[1], q[5], 0, 1, 2, 3, 4, 5, 6, 7);
  const auto h2 = __builtin_shufflevector(q[2], q[6], 0, 1, 2, 3, 4, 5, 6, 7);
  const auto h3 = __builtin_shufflevector(q[3], q[7], 0, 1, 2, 3, 4, 5, 6, 7);
  const auto a = __builtin_shufflevector(h0, h1, 0, 8, 1, 9, 4, 12, 5, 13);
  const auto b = __builtin_shufflevector(h2, h3, 0, 8, 1, 9, 4, 12, 5, 13);
  const auto c = __builtin_shufflevector(h0, h1, 2, 10, 3, 11, 6, 14, 7, 15);
  const auto d = __builtin_shufflevector(h2, h3, 2, 10, 3, 11, 6, 14, 7, 15);
  auto line = [&](int x) -> H& { return *reinterpret_cast<H*>(to + x * to_step); };
  line(0) = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
  line(1) = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  line(2) = __builtin_shufflevector(c, d, 0, 1, 8, 9, 4, 5, 12, 13);
  line(3) = __builtin_shufflevector(c, d, 2, 3, 10, 11, 6, 7, 14, 15);
}

// Rows of lines: how many, and how far apart they are.
struct Rows {
  int64_t count = 1, to = 0, from = 0;
};

// to[x * to_step + c] = f(from[offsets[c] + x]): lines that start anywhere, side by side, of each
// row.
template <class T, class F = Identity>
[[gnu::noinline]] void gather_lines(T* to, int64_t to_step, const T* from, const int64_t* offsets,
                                    int64_t lines, int64_t count, Rows rows = {}, F f = {}) {
  // Where the last four entries of a line begin: they may overlap those before.
  const int64_t last = count - 4;
  for (int64_t row = 0; row < rows.count; ++row, to += rows.to, from += rows.from) {
    int64_t c = 0;
    if constexpr (std::is_same_v<T, float> && kVectorBytes >= 32)
      for (; last >= 0 && c + 8 <= lines; c += 8)
        for (int64_t next = 0; next < count; next += 4) {
          const int64_t x = std::min(next, last);
          transpose_eight(to + x * to_step + c, to_step, from + x, offsets + c, f);
        }
    for (; last >= 0 && c + 4 <= lines; c += 4)
      for (int64_t next = 0; next < count; next += 4) {
        const int64_t x = std::min(next, last);
        transpose_four(to + x * to_step + c, to_step, from + x, offsets + c, f);
      }
    for (; c < lines; ++c)
      for (int64_t x = 0; x < count; ++x) to[x * to_step + c] = f(from[offsets[c] + x]);
  }
}

// to[x * to_step + c] = f(from[x * step + c * channel_stride]): lines of channels, side by side, of
// each row.
template <class T, class F = Identity>
[[gnu::noinline]] void interleave(T* to, int64_t to_step, const T* from, int64_t step,
                                  int64_t channel_stride, int64_t channels, int64_t count,
                                  Rows rows = {}, F f = {}) {
  constexpr int64_t kLines = 16;
  for (int64_t c = 0; step == 1 && c < channels; c += kLines) {
    const int64_t lines = std::min(kLines, channels - c);
    int64_t offsets[kLines];
    for (int64_t i = 0; i < lines; ++i) offsets[i] = (c + i) * channel_stride;
    gather_lines(to + c, to_step, from, offsets, lines, count, rows, f);
  }
  for (int64_t row = 0; step != 1 && row < rows.count; ++row, to += rows.to, from += rows.from)
    for (int64_t x = 0; x < count; ++x)
      copy_row(to + x * to_step, from + x * step, channels, channel_stride, f);
}
