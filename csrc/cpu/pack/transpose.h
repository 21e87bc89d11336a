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

// Rows of lines: how many, and how far apart they are.
struct Rows {
  int64_t count = 1, to = 0, from = 0;
};

// to[x * to_step + c] = f(from[offsets[c] + x]): as many lines at a time as fill kBytes, then
// fewer.
template <int kBytes, class T, class F>
inline void gather_row(T* to, int64_t to_step, const T* from, const int64_t* offsets, int64_t lines,
                       int64_t count, F f) {
  constexpr int64_t kLines = kBytes / sizeof(T), kEntries = kPart<T>;
  if constexpr (kBytes < 16) {
    for (int64_t c = 0; c < lines; ++c)
      for (int64_t x = 0; x < count; ++x) to[x * to_step + c] = f(from[offsets[c] + x]);
  } else {
    int64_t c = 0;
    for (; count >= kEntries && c + kLines <= lines; c += kLines)
      for (int64_t next = 0; next < count; next += kEntries) {
        const int64_t first = std::min(next, count - kEntries);
        transpose<kBytes, T>([&](int64_t j) { return from + offsets[c + j] + first; },
                             [&](int64_t x, auto entries) {
                               entries = f(entries);
                               __builtin_memcpy(to + (first + x) * to_step + c, &entries, kBytes);
                             });
      }
    gather_row<kBytes / 2>(to + c, to_step, from, offsets + c, lines - c, count, f);
  }
}

// The same of each row: lines that start anywhere, next to each other.
template <class T, class F = Identity>
[[gnu::noinline]] void gather_lines(T* to, int64_t to_step, const T* from, const int64_t* offsets,
                                    int64_t lines, int64_t count, Rows rows = {}, F f = {}) {
  for (int64_t row = 0; row < rows.count; ++row, to += rows.to, from += rows.from)
    gather_row<kVectorBytes>(to, to_step, from, offsets, lines, count, f);
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
