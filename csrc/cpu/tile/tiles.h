// Register tiles: the innermost loops of every kernel.
//
// Every sum has at least one term: GCC would keep those of a loop that may be empty in memory.

// Dot products of R rows with C shifted rows: c[r * pitch + j] (+)= sum_q a[r][q] * b[offset_j +
// q]. q runs over `count` entries, a whole number of vectors.
template <class T, int R, int C>
[[gnu::noinline]] void dot_tile(const T* __restrict a, int64_t a_pitch, const T* __restrict b,
                                const int64_t* __restrict offsets, int64_t count, T* __restrict c,
                                int64_t c_pitch, bool accumulate) {
  Reg<T> acc[R][C] = {};
  const T* columns[C];
  for (int j = 0; j < C; ++j) columns[j] = b + offsets[j];
  int64_t q = 0;
  do {
    Reg<T> rows[R];
    for (int r = 0; r < R; ++r) rows[r] = load(a + r * a_pitch + q);
    for (int j = 0; j < C; ++j) {
      const Reg<T> column = load(columns[j] + q);
      for (int r = 0; r < R; ++r) acc[r][j] += rows[r] * column;
    }
  } while ((q += kWidth<T>) < count);
  for (int r = 0; r < R; ++r) {
    T totals[C];
    sum_each<C>(acc[r], totals);
    T* at = c + r * c_pitch;
    for (int j = 0; j < C; ++j) at[j] = accumulate ? at[j] + totals[j] : totals[j];
  }
}

// dot_tile for any number of rows and columns.
template <class T>
void dot_block(const T* a, int64_t a_pitch, int64_t rows, const T* b, const int64_t* offsets,
               int64_t columns, int64_t count, T* c, int64_t c_pitch, bool accumulate) {
  constexpr int C = kManyRegisters ? 6 : 4;
  int64_t r = 0;
  auto strip = [&]<int R, int Wide>() {
    int64_t j = 0;
    auto some = [&]<int W>() {
      for (; j + W <= columns; j += W)
        dot_tile<T, R, W>(a + r * a_pitch, a_pitch, b, offsets + j, count, c + r * c_pitch + j,
                          c_pitch, accumulate);
    };
    some.template operator()<Wide>();
    some.template operator()<2>();
    some.template operator()<1>();
    r += R;
  };
  // Rows go by threes where that leaves no single one behind, else by twos.
  while (rows - r >= 3 && rows - r != 4) strip.template operator()<3, C>();
  while (rows - r >= 2) strip.template operator()<2, C + C / 2>();
  if (rows - r == 1) strip.template operator()<1, 8>();
}

// c[r * c_pitch + j] += sum_q w[q] * a[r * pitch + q] * b[j * pitch + q] on R rows and C columns.
template <class T, int R, int C>
[[gnu::noinline]] void gram_tile(const T* __restrict a, const T* __restrict b, int64_t pitch,
                                 int64_t count, const T* __restrict w, T* __restrict c,
                                 int64_t c_pitch) {
  Reg<T> acc[R][C] = {};
  int64_t q = 0;
  do {
    const Reg<T> weight = load(w + q);
    Reg<T> rows[R];
    for (int r = 0; r < R; ++r) rows[r] = weight * load(a + r * pitch + q);
    for (int j = 0; j < C; ++j) {
      const Reg<T> column = load(b + j * pitch + q);
      for (int r = 0; r < R; ++r) acc[r][j] += rows[r] * column;
    }
  } while ((q += kWidth<T>) < count);
  for (int r = 0; r < R; ++r) {
    T totals[C];
    sum_each<C>(acc[r], totals);
    for (int j = 0; j < C; ++j) c[r * c_pitch + j] += totals[j];
  }
}

// The same of R rows with each other, j <= r.
template <class T, int R>
[[gnu::noinline]] void gram_triangle(const T* __restrict a, int64_t pitch, int64_t count,
                                     const T* __restrict w, T* __restrict c, int64_t c_pitch) {
  Reg<T> acc[R][R] = {};
  int64_t q = 0;
  do {
    const Reg<T> weight = load(w + q);
    Reg<T> rows[R];
    for (int r = 0; r < R; ++r) {
      rows[r] = load_once(a + r * pitch + q);
      const Reg<T> row = weight * rows[r];
      for (int j = 0; j <= r; ++j) acc[r][j] += row * rows[j];
    }
  } while ((q += kWidth<T>) < count);
  for (int r = 0; r < R; ++r) {
    T totals[R];
    sum_each<R>(acc[r], totals);
    for (int j = 0; j <= r; ++j) c[r * c_pitch + j] += totals[j];
  }
}

// c[r * rows + j] += sum_q w[q] * a[r * pitch + q] * a[j * pitch + q], j <= r, on any number of
// rows.
template <class T>
void gram_rows(const T* a, int64_t pitch, int64_t rows, int64_t count, const T* w, T* c) {
  constexpr int C = kManyRegisters ? 6 : 4;
  for (int64_t first = 0; first < rows; first += C) {
    const int64_t some = std::min<int64_t>(C, rows - first);
    const T* own = a + first * pitch;
    T* to = c + first * rows;
    for (int64_t j = 0; j < first; j += C) {
      int64_t r = 0;
      auto strip = [&]<int R>() {
        gram_tile<T, R, C>(own + r * pitch, a + j * pitch, pitch, count, w, to + r * rows + j,
                           rows);
        r += R;
      };
      while (some - r >= 3 && some - r != 4) strip.template operator()<3>();
      while (some - r >= 2) strip.template operator()<2>();
      if (some - r == 1) strip.template operator()<1>();
    }
    [&]<int... i>(std::integer_sequence<int, i...>) {
      ((some == i + 1 ? gram_triangle<T, i + 1>(own, pitch, count, w, to + first, rows) : void()),
       ...);
    }(std::make_integer_sequence<int, C>{});
  }
}

// Weighted sums of shifted rows: c[i][q] = sum_j w[j * R + i] * b[offset_j + q], R rows of
// C vectors, times zero where a mask, if given, is not positive. On its own, so that its
// accumulators stay in registers whatever is around a call.
template <class T, int R, int C>
[[gnu::noinline]] void axpy_tile(const T* __restrict b, const int64_t* __restrict offsets,
                                 int64_t terms, const T* __restrict w, T* __restrict c,
                                 int64_t c_pitch, const T* __restrict mask, int64_t mask_pitch) {
  constexpr int kVectorsOfALine = std::max(1, 64 / kVectorBytes);
  if (mask)
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < C; v += kVectorsOfALine)
        __builtin_prefetch(mask + i * mask_pitch + v * kWidth<T>);
  Reg<T> acc[R][C] = {};
  int64_t j = 0;
  do {
    const T* source = b + offsets[j];
    Reg<T> columns[C];
    for (int v = 0; v < C; ++v) columns[v] = load(source + v * kWidth<T>);
    for (int i = 0; i < R; ++i) {
      const Reg<T> weight = broadcast(w[j * R + i]);
      for (int v = 0; v < C; ++v) acc[i][v] += weight * columns[v];
    }
  } while (++j < terms);
  const Reg<T> one = broadcast(T(1));
  if (mask)
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < C; ++v) {
        const Reg<T> z = load(mask + i * mask_pitch + v * kWidth<T>);
        store(c + i * c_pitch + v * kWidth<T>, acc[i][v] * (z > 0 ? one : Reg<T>{}));
      }
  else
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < C; ++v) store(c + i * c_pitch + v * kWidth<T>, acc[i][v]);
}

// The shape of a matrix-product tile: kRows x (kColumns vectors).
constexpr int kRows = kManyRegisters ? 8 : 4;
constexpr int kColumns = 3;
template <class T>
constexpr int kPanel = kColumns * kWidth<T>;

// Rows of a tile of so many vectors.
constexpr int tile_rows(int64_t vectors) {
  return vectors == 3 ? kRows : vectors == 2 ? kRows + kRows / 2 : 2 * kRows;
}

// Matrix product on C vectors of a packed panel:
// c[r * pitch + j] (+)= sum_k a[r * a_row + k * a_step] * b[k * b_step + j].
template <class T, int R, int C>
[[gnu::always_inline]] inline void product_tile(const T* __restrict a, int64_t a_row,
                                                int64_t a_step, const T* __restrict b,
                                                int64_t b_step, int64_t count, T* __restrict c,
                                                int64_t c_pitch, bool accumulate) {
  Reg<T> acc[R][C] = {};
  int64_t k = 0;
  do {
    Reg<T> columns[C];
    for (int v = 0; v < C; ++v) columns[v] = load(b + k * b_step + v * kWidth<T>);
    for (int r = 0; r < R; ++r) {
      const Reg<T> row = broadcast(a[r * a_row + k * a_step]);
      for (int v = 0; v < C; ++v) acc[r][v] += row * columns[v];
    }
  } while (++k < count);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < C; ++v) {
      T* at = c + r * c_pitch + v * kWidth<T>;
      store(at, accumulate ? load(at) + acc[r][v] : acc[r][v]);
    }
}

// product_tile for any number of rows, by R at a time first.
// All arguments are values: what is read through a pointer is read again after every store.
template <class T, int R, int C>
[[gnu::noinline]] void product_strips(const T* a, int64_t a_row, int64_t a_step, int64_t rows,
                                      const T* b, int64_t count, T* c, int64_t c_pitch,
                                      bool accumulate) {
  for (; rows >= R; rows -= R, a += R * a_row, c += R * c_pitch)
    product_tile<T, R, C>(a, a_row, a_step, b, kPanel<T>, count, c, c_pitch, accumulate);
  if constexpr (R > 1)
    if (rows > 0)
      product_strips<T, R <= 4 ? R - 1 : 4, C>(a, a_row, a_step, rows, b, count, c, c_pitch,
                                               accumulate);
}

// product_tile for any number of rows, and `columns` of the panel in whole vectors.
template <class T>
void product_rows(const T* a, int64_t a_row, int64_t a_step, int64_t rows, const T* b,
                  int64_t columns, int64_t count, T* c, int64_t c_pitch, bool accumulate) {
  const int64_t vectors = ceil_div(std::min<int64_t>(columns, kPanel<T>), kWidth<T>);
  const auto run = vectors == 3   ? product_strips<T, tile_rows(3), 3>
                   : vectors == 2 ? product_strips<T, tile_rows(2), 2>
                                  : product_strips<T, tile_rows(1), 1>;
  run(a, a_row, a_step, rows, b, count, c, c_pitch, accumulate);
}

// Steps of a sum over lines: how many on a line, how many lines, and how far apart these are in
// either operand.
struct LineSteps {
  int64_t steps, lines, s_pitch, x_pitch;
};

// Memory to ask for, for the second-level cache, a line with each step.
template <class T>
struct Ahead {
  const T *at, *end;
  int64_t step;

  // After so many steps.
  void advance(const LineSteps& all) {
    at += step * all.steps * all.lines;
    if (at >= end) step = 0;
  }
};

// c[r * c_pitch + j] (+)= sum over steps of s[r * kPitch + step] * x[step * x_step + j] on R rows
// and C vectors.
template <class T, int R, int C, int kPitch>
[[gnu::always_inline]] inline void line_tile(const T* __restrict s, const T* __restrict x,
                                             int64_t x_step, LineSteps all, T* __restrict c,
                                             int64_t c_pitch, bool accumulate, Ahead<T> ahead) {
  Reg<T> acc[R][C] = {};
  do {
    const T *at = s, *const end = s + all.steps, *columns = x;
    do {
      Reg<T> column[C];
      for (int v = 0; v < C; ++v) column[v] = load(columns + v * kWidth<T>);
#pragma GCC unroll 32
      for (int r = 0; r < R; ++r) {
        const Reg<T> row = broadcast(at[r * kPitch]);
        for (int v = 0; v < C; ++v) acc[r][v] += row * column[v];
      }
      columns += x_step;
      __builtin_prefetch(ahead.at, 0, 1);
      ahead.at += ahead.step;
    } while (++at < end);
    s += all.s_pitch;
    x += all.x_pitch;
  } while (--all.lines > 0);
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < C; ++v) {
      T* at = c + r * c_pitch + v * kWidth<T>;
      store(at, accumulate ? load(at) + acc[r][v] : acc[r][v]);
    }
}

// line_tile for any number of rows, by R at a time first, which look ahead.
template <class T, int R, int C, int kPitch>
[[gnu::noinline]] void line_rows(const T* s, int64_t rows, const T* x, int64_t x_step,
                                 LineSteps all, T* c, int64_t c_pitch, bool accumulate,
                                 Ahead<T> ahead) {
  for (; rows >= R; rows -= R, s += R * kPitch, c += R * c_pitch, ahead.step = 0)
    line_tile<T, R, C, kPitch>(s, x, x_step, all, c, c_pitch, accumulate, ahead);
  if constexpr (R > 1)
    if (rows > 0)
      line_rows<T,
                (R > 16  ? 16
                 : R > 8 ? 8
                 : R > 4 ? 4
                         : R - 1),
                C, kPitch>(s, rows, x, x_step, all, c, c_pitch, accumulate, ahead);
}

// Positions of a row that line_columns reads, and rows, at most.
template <class T>
constexpr int64_t kLinePiece = 256 / sizeof(T);
constexpr int64_t kLineGroup = kManyRegisters ? 24 : 12;

// line_rows on any number of columns, in whole vectors. Rows of s are kLinePiece apart.
template <class T>
void line_columns(const T* s, int64_t rows, const T* x, int64_t x_step, int64_t columns,
                  const LineSteps& all, T* c, int64_t c_pitch, bool accumulate, Ahead<T>& ahead) {
  constexpr int R = kLineGroup, kPitch = kLinePiece<T>;
  int64_t vectors = ceil_div(columns, kWidth<T>);
  for (int64_t some; vectors > 0; vectors -= some) {
    some = vectors == 4 ? 2 : std::min<int64_t>(3, vectors);
    const auto run = some == 3   ? line_rows<T, R / 3, 3, kPitch>
                     : some == 2 ? line_rows<T, R / 2, 2, kPitch>
                                 : line_rows<T, R, 1, kPitch>;
    run(s, rows, x, x_step, all, c, c_pitch, accumulate, ahead);
    ahead.advance(all);
    x += some * kWidth<T>;
    c += some * kWidth<T>;
  }
}

// How often that reads a row.
template <class T>
int64_t line_passes(int64_t columns) {
  return ceil_div(columns, 3 * kWidth<T>);
}

// Instructions of line_columns for `steps` steps in all, by so many calls.
inline double line_cost(int64_t rows, int64_t vectors, double steps, double calls) {
  // Fewer than eight sums wait for each other.
  const double busy = std::max<double>(rows + (rows % 4 == 0 ? 0 : 1), 8.0 / vectors);
  constexpr double kCall = 10;  // measured
  return busy * vectors * ((vectors > 2 ? 1.1 : vectors == 2 ? 1.2 : 1.6) * steps + kCall * calls);
}

// c[j][k][lane] (+)= sum over steps of s[step][lane] * x[j * x_pitch + step + k] on C channels j, K
// taps k and V vectors. Where there are registers enough, a window is broadcast once for the K
// steps that it serves.
template <class T, int C, int K, int V>
[[gnu::always_inline]] inline void tap_tile(const T* __restrict s, const T* __restrict x,
                                            int64_t x_pitch, LineSteps all, T* __restrict c,
                                            bool accumulate, Ahead<T> ahead) {
  Reg<T> acc[C][K][V] = {}, window[C][K];
  do {
    const T *at = x, *const end = x + all.steps;
    for (int j = 0; j < C; ++j)
      for (int k = 0; k < K - 1; ++k) window[j][k] = broadcast(at[j * x_pitch + k]);
    // The window of tap k is held at (turn + k) % K. Returns whether there are more steps.
    auto step = [&]<int turn>() __attribute__((always_inline)) {
      Reg<T> row[V];
      for (int v = 0; v < V; ++v) row[v] = load(s + v * kWidth<T>);
#pragma GCC unroll 32
      for (int j = 0; j < C; ++j)
        for (int k = 0; k < K; ++k) {
          Reg<T>& one = window[j][(turn + k) % K];
          if (!kManyRegisters || k == K - 1) one = broadcast(at[j * x_pitch + k]);
          for (int v = 0; v < V; ++v) acc[j][k][v] += one * row[v];
        }
      s += V * kWidth<T>;
      __builtin_prefetch(ahead.at, 0, 1);
      ahead.at += ahead.step;
      return ++at < end;
    };
    auto turns =
        [&]<int... turn>(std::integer_sequence<int, turn...>)
            __attribute__((always_inline)) { return (step.template operator()<turn>() && ...); };
    while (turns(std::make_integer_sequence<int, kManyRegisters ? K : 1>{})) {
    }
    x += all.x_pitch;
  } while (--all.lines > 0);
#pragma GCC unroll 32
  for (int i = 0; i < C * K * V; ++i) {
    T* at = c + i * kWidth<T>;
    const Reg<T> sum = acc[i / (K * V)][i / V % K][i % V];
    store(at, accumulate ? load(at) + sum : sum);
  }
}

// Columns of a panel whose vectors hold kPart positions of kParts columns each, and its vectors.
constexpr int kPartVectors = 4, kPartColumns = kPartVectors * kParts;

// c[r * c_pitch + j] (+)= sum over positions of s[r * kPitch + position] * x[position][j] on R rows
// and the columns j of a panel, by steps of kPart positions, which are repeated.
template <class T, int R, int kPitch>
[[gnu::always_inline]] inline void part_tile(const T* __restrict s, const T* __restrict x,
                                             LineSteps all, T* __restrict c, int64_t c_pitch,
                                             bool accumulate, Ahead<T> ahead) {
  constexpr int C = kPartVectors;
  Reg<T> acc[R][C] = {};
  do {
    const T *at = s, *const end = s + all.steps * kPart<T>, *columns = x;
    do {
      Reg<T> column[C];
      for (int v = 0; v < C; ++v) column[v] = load(columns + v * kWidth<T>);
      for (int r = 0; r < R; ++r) {
        const Reg<T> row = repeat(at + r * kPitch);
        for (int v = 0; v < C; ++v) acc[r][v] += row * column[v];
      }
      columns += C * kWidth<T>;
      __builtin_prefetch(ahead.at, 0, 1);
      ahead.at += ahead.step;
    } while ((at += kPart<T>) < end);
    s += all.s_pitch;
    x += all.x_pitch;
  } while (--all.lines > 0);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < C; v += kPart<T>) {
      T* at = c + r * c_pitch + v / kPart<T> * kWidth<T>;
      const Reg<T> sums = sum_parts<T>(&acc[r][v]);
      store(at, accumulate ? load(at) + sums : sums);
    }
}

// part_tile for any number of rows, by R at a time first, which look ahead.
template <class T, int R, int kPitch>
[[gnu::noinline]] void part_rows(const T* s, int64_t rows, const T* x, LineSteps all, T* c,
                                 int64_t c_pitch, bool accumulate, Ahead<T> ahead) {
  for (; rows >= R; rows -= R, s += R * kPitch, c += R * c_pitch, ahead.step = 0)
    part_tile<T, R, kPitch>(s, x, all, c, c_pitch, accumulate, ahead);
  if constexpr (R > 1)
    if (rows > 0)
      part_rows<T, R <= 4 ? R - 1 : 4, kPitch>(s, rows, x, all, c, c_pitch, accumulate, ahead);
}

// tile[r * kPanel + j] += sum_k a[at[k] + r] * b[at[k] + j] on R rows and C vectors.
template <class T, int R, int C>
inline void indexed_tile(const T* __restrict a, const T* __restrict b, const int64_t* __restrict at,
                         int64_t count, T* __restrict tile) {
  Reg<T> acc[R][C] = {};
  int64_t k = 0;
  do {
    const T *row = a + at[k], *column = b + at[k];
    Reg<T> columns[C];
    for (int v = 0; v < C; ++v) columns[v] = load(column + v * kWidth<T>);
    for (int r = 0; r < R; ++r) {
      const Reg<T> factor = broadcast(row[r]);
      for (int v = 0; v < C; ++v) acc[r][v] += factor * columns[v];
    }
  } while (++k < count);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < C; ++v) {
      T* to = tile + r * kPanel<T> + v * kWidth<T>;
      store(to, load(to) + acc[r][v]);
    }
}

// indexed_tile for any number of rows, and `columns` of the panel in whole vectors.
template <class T>
void indexed_product(const T* a, int64_t rows, const T* b, int64_t columns, const int64_t* at,
                     int64_t count, T* tile) {
  if (count == 0) return;
  auto run = [&]<int R, int C>() {
    int64_t r = 0;
    auto strip = [&]<int S>() {
      for (; r + S <= rows; r += S)
        indexed_tile<T, S, C>(a + r, b, at, count, tile + r * kPanel<T>);
    };
    strip.template operator()<R>();
    if constexpr (R > 4) strip.template operator()<4>();
    strip.template operator()<2>();
    strip.template operator()<1>();
  };
  const int64_t vectors = ceil_div(columns, kWidth<T>);
  if (vectors == 3)
    run.template operator()<kRows, 3>();
  else if (vectors == 2)
    run.template operator()<kRows, 2>();
  else
    run.template operator()<std::min<int>(2 * kRows, kPanel<T>), 1>();
}
