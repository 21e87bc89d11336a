// Register tiles: the innermost loops of every kernel. This file has the outer-product tile with
// its walks, and the driver that splits rows over whole and partial tiles; dot.h has the dot tile.
// Which operands meet is the business of those who call.
//
// Every sum has at least one term: GCC would keep those of a loop that may be empty in memory.

// Rows of the next smaller tile.
constexpr int fewer_rows(int rows) { return rows > 8 ? 8 : rows > 4 ? 4 : rows - 1; }

// f<R>(first) on R rows at a time of `count`, then on fewer.
template <int R, class F>
[[gnu::always_inline]] inline void each_tile(int64_t count, F f, int64_t first = 0) {
  for (; first + R <= count; first += R) f.template operator()<R>(first);
  if constexpr (R > 1)
    if (first < count) each_tile<fewer_rows(R)>(count, f, first);
}

// The shape of an outer-product tile: kRows x (kColumns vectors), or more rows of fewer vectors.
constexpr int kRows = tuning::kOuterRows, kColumns = tuning::kOuterVectors;
template <class T>
constexpr int kPanel = kColumns * kWidth<T>;
constexpr int tile_rows(int vectors) {
  return vectors == 3 ? kRows : vectors == 2 ? kRows + kRows / 2 : 2 * kRows;
}

// A walk has the operands of one step of a sum: row(r), an entry that is broadcast, and columns(),
// where the vectors begin. next() goes on and returns whether there is a step; skip() goes to later
// rows. A tile has no more than kMostRows.

// Rows a[r * a_row + k * a_step], columns b[k * b_step].
template <class T>
struct Strided {
  static constexpr int kMostRows = tile_rows(1);
  const T* a;
  int64_t a_row, a_step;
  const T* b;
  int64_t b_step, count;
  T row(int r) const { return a[r * a_row]; }
  const T* columns() const { return b; }
  bool next() {
    a += a_step;
    b += b_step;
    return --count > 0;
  }
  void skip(int rows) { a += rows * a_row; }
};

// Both operands at entries that are listed: rows a[at[k] + r], columns b[at[k]].
template <class T>
struct Listed {
  static constexpr int kMostRows = tile_rows(1);
  const T *a, *b;
  const int64_t* at;
  int64_t count;
  T row(int r) const { return a[*at + r]; }
  const T* columns() const { return b + *at; }
  bool next() {
    ++at;
    return --count > 0;
  }
  void skip(int rows) { a += rows; }
};

// Rows w[k * step + r], columns b[offsets[k]]: weighted sums of shifted vectors.
template <class T>
struct Shifted {
  const T* w;
  int64_t step;
  const T* b;
  const int64_t* offsets;
  int64_t count;
  T row(int r) const { return w[r]; }
  const T* columns() const { return b + *offsets; }
  bool next() {
    w += step;
    ++offsets;
    return --count > 0;
  }
};

// Positions that follow each other, from `first` on, and from entry `at` of an image on.
struct Line {
  int64_t first, at, count;
};

// Row r is the image shifted by offsets[r], columns are a panel [position][step], along lines of
// positions.
template <class T>
struct ShiftedLines {
  // An address a row is held in a register.
  static constexpr int kMostRows = 8;
  const T *image, *panel;
  int64_t step;
  const int64_t* offsets;
  const Line *line, *last;
  const T *at = image + line->at, *column = panel + line->first * step;
  int64_t left = line->count;
  T row(int r) const { return at[offsets[r]]; }
  const T* columns() const { return column; }
  bool next() {
    ++at;
    column += step;
    if (--left > 0) return true;
    if (line == last) return false;
    ++line;
    at = image + line->at;
    column = panel + line->first * step;
    left = line->count;
    return true;
  }
  void skip(int rows) { offsets += rows; }
};

// Where a tile's sums go: c[r * pitch], over what is there or added to it.
template <class T>
struct Store {
  T* c;
  int64_t pitch;
  bool accumulate;
  void operator()(int r, int v, Reg<T> sum) const {
    T* at = c + r * pitch + v * kWidth<T>;
    store(at, accumulate ? load(at) + sum : sum);
  }
  void skip(int rows) { c += rows * pitch; }
};

// The same of rows that are listed: c[rows[r] * pitch].
template <class T>
struct StoreListed {
  T* c;
  const int64_t* rows;
  int64_t pitch;
  bool accumulate;
  void operator()(int r, int v, Reg<T> sum) const {
    Store<T>{c + rows[r] * pitch, 0, accumulate}(0, v, sum);
  }
  void skip(int count) { rows += count; }
};

// sink(r, v, sum over the steps of row(r) * vector v of columns()) on R rows and C vectors.
template <class T, int R, int C, class Walk, class Sink>
[[gnu::always_inline]] inline void outer_tile(Walk walk, Sink sink) {
  Reg<T> sums[R][C] = {};
  do {
    Reg<T> columns[C];
    for (int v = 0; v < C; ++v) columns[v] = load(walk.columns() + v * kWidth<T>);
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) {
      const Reg<T> row = broadcast(walk.row(r));
      for (int v = 0; v < C; ++v) sums[r][v] += row * columns[v];
    }
  } while (walk.next());
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < C; ++v) sink(r, v, sums[r][v]);
}

// outer_tile on any number of rows. All arguments are values: what is read through a pointer is
// read again after every store.
template <class T, int R, int C, class Walk, class Sink>
[[gnu::noinline]] void outer_rows(Walk walk, int64_t rows, Sink sink) {
  for (; rows >= R; rows -= R, walk.skip(R), sink.skip(R)) outer_tile<T, R, C>(walk, sink);
  if constexpr (R > 1)
    if (rows > 0) outer_rows<T, fewer_rows(R), C>(walk, rows, sink);
}

// outer_tile on any number of rows, and `columns` of a panel in whole vectors.
template <class T, class Walk, class Sink>
void outer_panel(Walk walk, int64_t rows, int64_t columns, Sink sink) {
  auto run = [&]<int C>() {
    outer_rows<T, std::min(tile_rows(C), Walk::kMostRows), C>(walk, rows, sink);
  };
  const int64_t vectors = ceil_div(std::min<int64_t>(columns, kPanel<T>), kWidth<T>);
  if (vectors == 3)
    run.template operator()<3>();
  else if (vectors == 2)
    run.template operator()<2>();
  else
    run.template operator()<1>();
}

// Weighted sums of shifted rows, c[i][q] = sum_j w[j * R + i] * b[offset_j + q], R rows of C
// vectors, times zero where a mask, if given, is not positive.
template <class T, int R, int C>
[[gnu::noinline]] void axpy_tile(const T* __restrict b, const int64_t* __restrict offsets,
                                 int64_t terms, const T* __restrict w, T* __restrict c,
                                 int64_t c_pitch, const T* __restrict mask, int64_t mask_pitch) {
  constexpr int kVectorsOfALine = std::max(1, 64 / kVectorBytes);
  if (mask)
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < C; v += kVectorsOfALine)
        __builtin_prefetch(mask + i * mask_pitch + v * kWidth<T>);
  outer_tile<T, R, C>(Shifted<T>{w, R, b, offsets, terms}, [=](int i, int v, Reg<T> sum) {
    if (mask) sum *= load(mask + i * mask_pitch + v * kWidth<T>) > 0 ? broadcast(T(1)) : Reg<T>{};
    store(c + i * c_pitch + v * kWidth<T>, sum);
  });
}
