// Per-sample weight gradients of 3 x 3 and 5 x 5 convolutions with fewer products, and rows in the
// lanes of vectors.
//
// The sums of winograd/toom_cook.h along the vertical axis alone, on tiles of four lines, as in
// winograd/one_axis_positions.h. Positions are turned, [point][position][row], some rows and tiles
// at a time in the first-level cache; windows are broadcast from lines as they lie. For many rows
// and few channels.

template <class T, int kTaps>
class TileRows {
  using Shape = LineShape<T, kTaps>;
  using Piece = typename Shape::Piece;
  using Points = typename Shape::Points;
  static constexpr int P = Points::points, kTile = Shape::kTile;
  // Rows that are multiplied at a time: two vectors share a broadcast.
  static constexpr int kVectors = 2;
  static constexpr int64_t kGroup = kVectors * kWidth<T>;
  // Positions of a piece, and from point to point: not a power of two, for the sake of the cache.
  static constexpr int64_t kPiece = (28 << 10) / (P * kGroup * sizeof(T)) / kPart<T> * kPart<T>;
  static constexpr int kLine = 64 / sizeof(T);
  static constexpr int64_t kPlane = kPiece * kGroup + kLine;
  // Rows so many bytes apart, or a multiple of it, share few places of the cache.
  static constexpr int64_t kCrowded = 2048;
  // Channels that are multiplied at a time: as the registers allow.
  static constexpr int kChannels =
      kManyRegisters ? 30 / ((kVectors + 1) * kTaps) : 13 / (kVectors * kTaps);

 public:
  static bool applies(const Correlation<T>& p) { return TileTransform<T, kTaps, 2>::applies(p); }

  static Layout layout(int64_t rows, int64_t) {
    return tap_planes(true, kTaps, round_up(rows, kWidth<T>));
  }

  // Instructions for a block of one sample and column, of `reuse` that share their windows.
  static double cost(const Correlation<T>& p, int64_t rows, int64_t channels, double reuse) {
    const Shape shape(p, channels, channels * line(p));
    const double nx = shape.positions, down = shape.down, columns = channels * kTaps;
    const double vectors = ceil_div(rows, kWidth<T>), groups = ceil_div(rows, kGroup);
    const double pieces = std::max(nx / kPiece, 1 / down);
    // Measured: of a position, to multiply and to take it.
    constexpr double kProduct = kVectorBytes == 64 ? 1.35 : 1.15,
                     kTake = kVectorBytes == 64 ? 55 : 40;
    return kVectors * groups * P * down * columns * (kProduct * nx + 4 * pieces) +
           vectors * (kTake * down * nx + 5 * P * columns) +
           8 * P * down * channels * line(p) / kWidth<T> / (shape.slab == down ? reuse : 1);
  }

  TileRows(const Correlation<T>& p, int64_t rows, int64_t channels)
      : problem_(p),
        shape_(p, channels, channels * line(p)),
        line_(line(p)),
        pitch_(round_up(rows, kWidth<T>)),
        input_(P * line_),
        windows_(shape_.slab * P * point()),
        positions_(P * kPlane),
        products_(held(rows) * P * columns()) {}

  // sink(at, pitch, g): vectors of G of rows [a, a + rows) and channels [b, b + channels), at
  // entries at, at + pitch, ... of the layout.
  template <class Sink>
  void visit(int64_t n, int64_t v, int64_t a, int64_t rows, int64_t b, int64_t channels,
             Sink& sink) {
    for (int64_t first = 0; first < shape_.down; first += shape_.slab) {
      const int64_t last = std::min(first + shape_.slab, shape_.down);
      take_windows(n, v, b, channels, first, last);
      for (int64_t r = 0; r < rows; r += kGroup) {
        const int64_t some = std::min(kGroup, rows - r);
        T* products = products_.data() + (held(rows) > kGroup ? r * P * columns() : 0);
        const int64_t passes = ceil_div(channels, kChannels);
        Ahead<T> ahead = next_rows<kGroup>(problem_, n, v, a, r, rows,
                                           P * (last - first) * shape_.positions * passes);
        Shape::each_piece(first, last, shape_.positions, kPiece, kPart<T>, [&](const Piece& piece) {
          take_positions(n, v, a + r, some, piece);
          multiply<kChannels>(piece, first, 0, channels, products, ahead);
        });
        if (last == shape_.down) recover(products, some, r, channels, sink);
      }
    }
  }

 private:
  // Entries of a line of windows, and of those at a point; columns of the products.
  static int64_t line(const Correlation<T>& p) {
    return round_up(p.small.size[5] + kTaps - 1, kWidth<T>);
  }
  int64_t point() const { return shape_.channels * line_; }
  int64_t columns() const { return shape_.channels * kTaps; }

  // Rows whose products are held: all until the last slab is done.
  int64_t held(int64_t rows) const {
    return shape_.slab < shape_.down ? round_up(rows, kGroup) : kGroup;
  }

  // windows[tile][point][channel][x]
  void take_windows(int64_t n, int64_t v, int64_t b, int64_t channels, int64_t first,
                    int64_t last) {
    const Grid<const T>& x = problem_.large;
    const WindowKey key{n, x.size[0] > 1 ? v : 0, b, first};
    if (std::exchange(key_, key) == key) return;
    for (int64_t tile = first; tile < last; ++tile)
      for (int64_t c = 0; c < channels; ++c) {
        for (int i = 0; i < P; ++i)
          copy_line(input_.data() + i * line_, shape_.width(), x.channel(v, n, b + c), x,
                    kTile * tile + i - problem_.taps.padding[1], -problem_.taps.padding[2]);
        T* to = windows_.data() + (tile - first) * P * point() + c * line_;
        for (int64_t q = 0; q < line_; q += kWidth<T>) {
          Reg<T> in[P], out[P];
          for (int i = 0; i < P; ++i) in[i] = load(input_.data() + i * line_ + q);
          Points::windows(in, out);
          for (int i = 0; i < P; ++i) store(to + i * point() + q, out[i]);
        }
      }
  }

  // positions[point][position of the piece][row]
  [[gnu::noinline]] void take_positions(int64_t n, int64_t v, int64_t a, int64_t rows,
                                        const Piece& piece) {
    const Grid<const T>& s = problem_.small;
    // The last entries of a line are taken together with those before them.
    const int64_t width = piece.width, count = std::min<int64_t>(kPart<T>, width);
    for (int64_t tile = 0; tile < piece.tiles; ++tile)
      for (int64_t r = 0; r < rows; r += kWidth<T>) {
        const int64_t y = kTile * (piece.tile + tile);
        const int64_t lines = std::min<int64_t>(kTile, s.size[4] - y);
        const int64_t some = std::min<int64_t>(kWidth<T>, rows - r);
        const T* from = s.channel(v, n, a + r) + y * s.stride[4] + piece.x * s.stride[5];
        T* to = positions_.data() + tile * width * kGroup + r;
        const bool whole = lines == kTile && some == kWidth<T> && count == kPart<T>;
        int64_t next = 0;
        if (whole && s.stride[5] == 1 && s.stride[2] * sizeof(T) % kCrowded == 0)
          for (; next + kLine <= width; next += kLine) take_lines(from + next, to + next * kGroup);
        for (; next < width; next += count) {
          const int64_t x = std::min(next, width - count);
          const T* at = from + x * s.stride[5];
          if (whole && s.stride[5] == 1)
            take_block(to + x * kGroup, [&](int dy, Reg<T>* out) {
              turn_rows(at + dy * s.stride[4], s.stride[2], out);
            });
          else if (whole && s.stride[2] == 1)
            take_block(to + x * kGroup, [&](int dy, Reg<T>* out) {
              for (int i = 0; i < kPart<T>; ++i)
                out[i] = load(at + dy * s.stride[4] + i * s.stride[5]);
            });
          else
            take_part(at, some, lines, count, to + x * kGroup);
        }
      }
  }

  // The points of kPart positions of a tile and of a vector of rows: read(dy, out) has its lines.
  template <class F>
  [[gnu::always_inline]] static void take_block(T* to, F read) {
    Reg<T> in[kTile][kPart<T>];
    for (int dy = 0; dy < kTile; ++dy) read(dy, in[dy]);
    for (int x = 0; x < kPart<T>; ++x) {
      Reg<T> at[kTile], out[P];
      for (int dy = 0; dy < kTile; ++dy) at[dy] = in[dy][x];
      Points::positions(at, out);
      for (int p = 0; p < P; ++p) store(to + p * kPlane + x * kGroup, out[p]);
    }
  }

  // The same of a whole line of the cache of each row, copied first: of rows that share few places
  // in it, every one would be read anew for its next part.
  [[gnu::noinline]] void take_lines(const T* from, T* to) const {
    const Grid<const T>& s = problem_.small;
    T block[kTile][kWidth<T>][kLine];
    for (int y = 0; y < kTile; ++y)
      for (int r = 0; r < kWidth<T>; ++r)
        copy_dense(block[y][r], from + r * s.stride[2] + y * s.stride[4], kLine, Identity{});
    for (int x = 0; x < kLine; x += kPart<T>)
      take_block(to + x * kGroup,
                 [&](int dy, Reg<T>* out) { turn_rows(block[dy][0] + x, kLine, out); });
  }

  // The same of fewer rows, lines or positions, or of some that lie apart.
  [[gnu::noinline]] void take_part(const T* from, int64_t rows, int64_t lines, int64_t count,
                                   T* to) const {
    const Grid<const T>& s = problem_.small;
    T block[kTile][kWidth<T>][kPart<T>] = {};
    for (int64_t y = 0; y < lines; ++y)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t x = 0; x < count; ++x)
          block[y][r][x] = from[r * s.stride[2] + y * s.stride[4] + x * s.stride[5]];
    take_block(to, [&](int dy, Reg<T>* out) { turn_rows(block[dy][0], kPart<T>, out); });
  }

  // products[point][channel][tap][row] (+)= positions times windows of channels [c, channels), C of
  // them at a time.
  template <int C>
  void multiply(const Piece& piece, int64_t first, int64_t c, int64_t channels, T* products,
                Ahead<T>& ahead) const {
    const T* x = windows_.data() + (piece.tile - first) * P * point() + piece.x;
    const LineSteps all{piece.width, piece.tiles, piece.width * kGroup, P * point()};
    for (; c + C <= channels; c += C)
      multiply_points<C>(positions_.data(), x + c * line_, line_, point(), all,
                         products + c * kTaps * kGroup, columns() * kGroup,
                         piece.tile > 0 || piece.x > 0, ahead);
    if constexpr (C > 1)
      if (c < channels) multiply<C - 1>(piece, first, c, channels, products, ahead);
  }

  template <int C>
  [[gnu::noinline]] static void multiply_points(const T* s, const T* x, int64_t x_pitch,
                                                int64_t x_step, const LineSteps& all, T* products,
                                                int64_t step, bool accumulate, Ahead<T>& ahead) {
    for (int p = 0; p < P; ++p, s += kPlane, x += x_step, products += step) {
      tap_tile<T, C, kTaps, kVectors>(s, x, x_pitch, all, products, accumulate, ahead);
      ahead.advance(all);
    }
  }

  template <class Sink>
  [[gnu::noinline]] void recover(const T* products, int64_t rows, int64_t first, int64_t channels,
                                 Sink& sink) const {
    Sink own = sink;
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t k = 0; k < kTaps; ++k, products += kGroup)
        for (int64_t r = 0; r < rows; r += kWidth<T>) {
          Reg<T> in[P], out[kTaps];
          for (int p = 0; p < P; ++p) in[p] = load(products + p * columns() * kGroup + r);
          Points::taps(in, out);
          for (int i = 0; i < kTaps; ++i) out[i] *= T(1) / T(Points::divisor);
          own((c * kTaps * kTaps + k) * pitch_ + first + r, kTaps * pitch_, out);
        }
    sink = own;
  }

  const Correlation<T>& problem_;
  Shape shape_;
  int64_t line_, pitch_;
  Scratch<T> input_, windows_, positions_, products_;
  WindowKey key_{-1, -1, -1, -1};
};
