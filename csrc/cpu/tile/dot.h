// The dot tile: sums along the lanes of vectors, of R rows with C shifted rows.

// c[r * c_pitch + j] (+)= sum_q w[q] * a[r * a_pitch + q] * b[offsets[j] + q], without w if
// !kWeighted. q runs over `count` entries, a whole number of vectors.
template <class T, int R, int C, bool kWeighted>
[[gnu::noinline]] void dot_tile(const T* __restrict a, int64_t a_pitch, const T* __restrict b,
                                const int64_t* __restrict offsets, int64_t count,
                                const T* __restrict w, T* __restrict c, int64_t c_pitch,
                                bool accumulate) {
  Reg<T> sums[R][C] = {};
  const T* columns[C];
  for (int j = 0; j < C; ++j) columns[j] = b + offsets[j];
  int64_t q = 0;
  do {
    Reg<T> rows[R];
    for (int r = 0; r < R; ++r) {
      rows[r] = load(a + r * a_pitch + q);
      if constexpr (kWeighted) rows[r] *= load(w + q);
    }
    for (int j = 0; j < C; ++j) {
      const Reg<T> column = load(columns[j] + q);
      for (int r = 0; r < R; ++r) sums[r][j] += rows[r] * column;
    }
  } while ((q += kWidth<T>) < count);
  for (int r = 0; r < R; ++r) {
    T totals[C];
    sum_each<C>(sums[r], totals);
    T* at = c + r * c_pitch;
    for (int j = 0; j < C; ++j) at[j] = accumulate ? at[j] + totals[j] : totals[j];
  }
}

// dot_tile on R rows and any number of columns.
template <class T, int R, bool kWeighted = false>
void dot_columns(const T* a, int64_t a_pitch, const T* b, const int64_t* offsets, int64_t columns,
                 int64_t count, const T* w, T* c, int64_t c_pitch, bool accumulate) {
  constexpr int C = R == 3 ? tuning::kDotColumns : tuning::kDotColumns + 2;
  each_tile<C>(columns, [&]<int S>(int64_t j) {
    dot_tile<T, R, S, kWeighted>(a, a_pitch, b, offsets + j, count, w, c + j, c_pitch, accumulate);
  });
}

// dot_tile on any number of rows and columns, without weights.
template <class T>
void dot_block(const T* a, int64_t a_pitch, int64_t rows, const T* b, const int64_t* offsets,
               int64_t columns, int64_t count, T* c, int64_t c_pitch, bool accumulate) {
  each_tile<3>(rows, [&]<int R>(int64_t r) {
    dot_columns<T, R>(a + r * a_pitch, a_pitch, b, offsets, columns, count, nullptr,
                      c + r * c_pitch, c_pitch, accumulate);
  });
}

// c[r * rows + j] += sum_q w[q] * a[r * pitch + q] * a[j * pitch + q] for j <= r, and perhaps a few
// beyond, on any number of rows. offsets[j] is j * pitch.
template <class T>
void gram_rows(const T* a, int64_t pitch, const int64_t* offsets, int64_t rows, int64_t count,
               const T* w, T* c) {
  each_tile<3>(rows, [&]<int R>(int64_t r) {
    dot_columns<T, R, true>(a + r * pitch, pitch, a, offsets, r + R, count, w, c + r * rows, rows,
                            true);
  });
}
