// Per-sample weight gradients of 3 x 3 and 5 x 5 convolutions with fewer products, and neither
// operand turned.
//
// The sums of winograd/toom_cook.h along the vertical axis alone, on tiles of four lines. Positions
// are held as [point][row][position], some rows and tiles at a time in the first-level cache;
// winograd/windows_1d.h has the windows they meet.

template <class T, int kTaps, template <class, int> class WindowsOf>
class TileLines {
  using Windows = WindowsOf<T, kTaps>;
  using Shape = LineShape<T, kTaps>;
  using Piece = typename Shape::Piece;
  using Points = typename Shape::Points;
  static constexpr int P = Points::points, kTile = Shape::kTile;
  static constexpr int64_t kPiece = Windows::kPiece, kGroup = Windows::kGroup;
  // Positions of all rows at a point, and a line of the cache: else planes would share few of them.
  static constexpr int64_t kPlane = kGroup * kPiece + 64 / sizeof(T);

 public:
  static bool applies(const Correlation<T>& p) { return TileTransform<T, kTaps, 2>::applies(p); }

  static Layout layout(int64_t, int64_t channels) { return Windows::layout(channels); }

  // Instructions for a block of one sample and column, of `reuse` that share their windows.
  static double cost(const Correlation<T>& p, int64_t rows, int64_t channels, double reuse) {
    const Shape shape = Windows::shape(p, channels);
    const double nx = round_up(shape.positions, Windows::kStep), down = shape.down;
    const double pieces = nx / kPiece + 1 / down, line = layout(rows, channels).line;
    return P * down * Windows::product_cost(rows, channels, nx, pieces) +
           rows * (down * (nx / kWidth<T> + 1) * 4 + 3 * line / kWidth<T>)*P +
           P * down * Windows::window_cost(channels, nx) / (shape.slab == down ? reuse : 1);
  }

  TileLines(const Correlation<T>& p, int64_t rows, int64_t channels)
      : problem_(p),
        windows_(p, channels),
        shape_(windows_.shape()),
        width_(round_up(shape_.positions, Windows::kStep)),
        pitch_(layout(rows, channels).line),
        copies_(kTile * (kPiece + kWidth<T>)),
        positions_(P * kPlane),
        products_(held(rows) * P * pitch_, held(rows) * P * pitch_) {}

  // sink(at, pitch, g): vectors of G of rows [a, a + rows) and channels [b, b + channels), at
  // entries at, at + pitch, ... of the layout. Lanes between its values are zero.
  template <class Sink>
  void visit(int64_t n, int64_t v, int64_t a, int64_t rows, int64_t b, int64_t channels,
             Sink& sink) {
    for (int64_t first = 0; first < shape_.down; first += shape_.slab) {
      take_windows(n, v, b, channels, first);
      const int64_t last = std::min(first + shape_.slab, shape_.down);
      for (int64_t r = 0; r < rows; r += kGroup) {
        const int64_t some = std::min(kGroup, rows - r);
        T* products = products_.data() + (held(rows) > kGroup ? r * P * pitch_ : 0);
        const int64_t steps = P * (last - first) * width_ / Windows::kStep * windows_.passes();
        Ahead<T> ahead = next_rows<kGroup>(problem_, n, v, a, r, rows, steps);
        Shape::each_piece(first, last, width_, kPiece, kWidth<T>, [&](const Piece& piece) {
          take_positions(n, v, a + r, some, piece);
          const LineSteps all{piece.width / Windows::kStep, piece.tiles,
                              round_up(piece.width, kWidth<T>), 0};
          for (int p = 0; p < P; ++p)
            windows_.multiply(positions_.data() + p * kPlane, some, p, piece.tile - first, piece.x,
                              all, products + p * pitch_, P * pitch_, piece.tile > 0 || piece.x > 0,
                              ahead);
        });
        if (last == shape_.down) recover(products, some, r, sink);
      }
    }
  }

 private:
  // Rows whose products are held: all until the last slab is done.
  int64_t held(int64_t rows) const {
    return shape_.slab < shape_.down ? rows : std::min(rows, kGroup);
  }

  void take_windows(int64_t n, int64_t v, int64_t b, int64_t channels, int64_t first) {
    const Grid<const T>& x = problem_.large;
    const WindowKey key{n, x.size[0] > 1 ? v : 0, b, first};
    if (std::exchange(key_, key) == key) return;
    for (int64_t tile = 0; tile < std::min(shape_.slab, shape_.down - first); ++tile)
      windows_.take(x.channel(v, n, b), kTile * (first + tile) - problem_.taps.padding[1], tile,
                    channels);
  }

  // positions[point][row][position of the piece]
  [[gnu::noinline]] void take_positions(int64_t n, int64_t v, int64_t a, int64_t rows,
                                        const Piece& piece) {
    const Grid<const T>& s = problem_.small;
    const T* base = s.channel(v, n, a) + piece.x * s.stride[5];
    const int64_t width = piece.width, inside = std::min(width, s.size[5] - piece.x);
    const int64_t pitch = s.stride[4], copy_pitch = kPiece + kWidth<T>;
    // Lines are read where they are if whole vectors of them are there: a vector may end in the
    // line below, if there is one.
    const bool dense = s.stride[5] == 1 && inside == width && width >= kWidth<T> && pitch >= width;
    const int64_t y = kTile * piece.tile, down = dense ? s.size[4] - y : 0;
    const int64_t whole = std::min(piece.tiles, down / kTile);
    const int64_t to_pitch = round_up(width, kWidth<T>);
    for (int64_t r = 0; r < rows; ++r, base += s.stride[2]) {
      T* to = positions_.data() + r * kPiece;
      take_tiles(base + y * pitch, pitch, width, whole, whole * kTile == down, to);
      for (int64_t i = whole; i < piece.tiles; ++i) {
        for (int64_t dy = 0; dy < kTile; ++dy) {
          T* line = copies_.data() + dy * copy_pitch;
          const int64_t at = y + i * kTile + dy, filled = at < s.size[4] ? inside : 0;
          copy_row(line, base + at * pitch, filled, s.stride[5], Identity{});
          std::fill(line + filled, line + width, T(0));
        }
        take_tiles(copies_.data(), copy_pitch, width, 1, false, to + i * to_pitch);
      }
    }
  }

  // Some tiles of a row. Vectors stay within the last line if it is the `end`.
  [[gnu::noinline]] static void take_tiles(const T* lines, int64_t pitch, int64_t width,
                                           int64_t count, bool end, T* to) {
    const int64_t to_pitch = round_up(width, kWidth<T>);
    for (int64_t i = 0; i < count; ++i, lines += kTile * pitch, to += to_pitch) {
      const int64_t last = end && i + 1 == count ? width - kWidth<T> : width;
      for (int64_t next = 0; next < width; next += kWidth<T>) {
        const int64_t x = std::min(next, last);
        Reg<T> in[kTile], out[P];
        for (int dy = 0; dy < kTile; ++dy) in[dy] = load(lines + dy * pitch + x);
        Points::positions(in, out);
        for (int py = 0; py < P; ++py) store(to + py * kPlane + x, out[py]);
      }
    }
  }

  // The sums of rows from `first` on, with zeros in lanes that are no columns.
  template <class Sink>
  [[gnu::noinline]] void recover(const T* products, int64_t rows, int64_t first, Sink& sink) const {
    const int64_t columns = kTaps * shape_.channels;
    Reg<T> lane;
    for (int i = 0; i < kWidth<T>; ++i) lane[i] = i;
    Sink own = sink;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t q = 0; q < pitch_; q += kWidth<T>) {
        Reg<T> in[P], out[kTaps];
        for (int p = 0; p < P; ++p) in[p] = load(products + (r * P + p) * pitch_ + q);
        Points::taps(in, out);
        for (int k = 0; k < kTaps; ++k) out[k] *= T(1) / T(Points::divisor);
        if (q + kWidth<T> > columns)
          for (int k = 0; k < kTaps; ++k) out[k] = lane < T(columns - q) ? out[k] : Reg<T>{};
        own((first + r) * kTaps * pitch_ + q, pitch_, out);
      }
    sink = own;
  }

  const Correlation<T>& problem_;
  Windows windows_;
  const Shape& shape_;
  int64_t width_, pitch_;
  Scratch<T> copies_, positions_, products_;
  WindowKey key_{-1, -1, -1, -1};
};
