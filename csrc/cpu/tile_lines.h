// Per-sample weight gradients of 3 x 3 and 5 x 5 convolutions from few channels, with fewer
// products. Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// The sums of point_transform.h along the vertical axis alone, on tiles of four lines. Columns are
// pairs of a channel and a horizontal tap. A vector holds kPart positions of some columns, which
// are pieces of lines as they lie; it meets the same positions of a row, repeated. So neither
// operand is turned, and a sum over positions ends with the sums of the vector's parts.

template <class T, int kTaps>
class TileLines {
  static constexpr int kTile = 4;
  static constexpr int64_t kPiece = 512 / sizeof(T);  // positions at a time
  static constexpr int64_t kGroup = 6;                // rows at a time
  static constexpr int kRowsOfTile = kManyRegisters ? 6 : 3;
  using Points = PointTransform<T, kTaps, kTile>;
  static constexpr int P = Points::points;
  // Positions of all rows at a point, and a line of the cache: else planes would share few of them.
  static constexpr int64_t kPlane = kGroup * kPiece + 64 / sizeof(T);

 public:
  static bool applies(const Correlation<T>& p) { return TileTransform<T, kTaps, 2>::applies(p); }

  // A block's values are [row][line of taps][channel][tap], lines in whole panels.
  static Layout layout(int64_t, int64_t channels) {
    const int64_t line = round_up(kTaps * channels, kPartColumns);
    return {.row = kTaps * line, .channel = kTaps, .tap = 1, .line = line};
  }

  // Instructions for a block of one sample and column, of `reuse` that share their windows.
  static double cost(const Correlation<T>& p, int64_t rows, int64_t channels, double reuse) {
    const double down = ceil_div(p.small.size[4], kTile);
    const double nx = round_up(p.small.size[5], kPart<T>);
    const double panels = ceil_div(kTaps * channels, kPartColumns);
    const double vectors = panels * kPartVectors / kPart<T>;  // for each position
    const double pieces = down * nx / kPiece + 1;
    // A tile of few rows waits for its windows.
    const double busy = rows + (rows % kRowsOfTile == 0 ? 0 : 1);
    const bool held = slab_of(p, channels) >= down;
    return busy * P * (1.1 * vectors * down * nx + panels * (12 * pieces + 25)) +
           rows * down * (nx / kWidth<T> + 1) * 4 * P +
           down * P * (channels * (nx / kWidth<T> + 1) * 12 + vectors * nx * 10) /
               (held ? reuse : 1);
  }

  TileLines(const Correlation<T>& p, int64_t rows, int64_t channels)
      : problem_(p),
        width_(round_up(p.small.size[5], kPart<T>)),
        line_(width_ + kTaps - 1 + kWidth<T>),
        panels_(ceil_div(kTaps * channels, kPartColumns)),
        down_(ceil_div(p.small.size[4], kTile)),
        slab_(slab_of(p, channels)),
        input_(P * line_),
        lines_(P * channels * line_),
        windows_(P * slab_ * panels_ * width_ * kPartColumns,
                 P * slab_ * panels_ * width_ * kPartColumns),
        copies_(kTile * (kPiece + kWidth<T>)),
        positions_(P * kPlane),
        products_((slab_ < down_ ? rows : std::min(rows, kGroup)) * row_entries(),
                  (slab_ < down_ ? rows : std::min(rows, kGroup)) * row_entries()) {}

  // sink(at, pitch, g): vectors of G of rows [a, a + rows) and channels [b, b + channels), at
  // entries at, at + pitch, ... of the layout. Lanes between its values are zero.
  template <class Sink>
  void visit(int64_t n, int64_t v, int64_t a, int64_t rows, int64_t b, int64_t channels,
             Sink& sink) {
    for (int64_t first = 0; first < down_; first += slab_) {
      take_windows(n, v, b, channels, first);
      const int64_t last = std::min(first + slab_, down_);
      for (int64_t r = 0; r < rows; r += kGroup) {
        const int64_t some = std::min(kGroup, rows - r);
        T* products = products_.data() + (slab_ < down_ ? r * row_entries() : 0);
        each_piece(first, last, [&](const Piece& piece) {
          take_positions(n, v, a + r, some, piece);
          multiply(products, some, piece, first, next_rows(n, v, a, r, rows, piece));
        });
        if (last == down_) recover(products, some, r, sink);
      }
    }
  }

 private:
  // Some tiles one below the other, and some of their positions: whole lines, if several tiles.
  struct Piece {
    int64_t tile, tiles, x, width;
  };

  static int64_t slab_of(const Correlation<T>& p, int64_t channels) {
    constexpr int64_t kWindowBytes = 256 << 10;
    const int64_t width = round_up(p.small.size[5], kPart<T>);
    const int64_t columns = round_up(kTaps * channels, kPartColumns);
    return std::clamp<int64_t>(kWindowBytes / (P * columns * width * sizeof(T)), 1,
                               ceil_div(p.small.size[4], kTile));
  }

  template <class F>
  void each_piece(int64_t first, int64_t last, F f) const {
    const int64_t tiles = std::max<int64_t>(1, kPiece / round_up(width_, kWidth<T>));
    for (int64_t tile = first; tile < last; tile += tiles)
      for (int64_t x = 0; x < width_; x += kPiece)
        f(Piece{tile, std::min(tiles, last - tile), x, std::min(kPiece, width_ - x)});
  }

  // windows[panel][point][tile][positions / kPart][vectors] of the tiles from `first` on
  [[gnu::noinline]] void take_windows(int64_t n, int64_t v, int64_t b, int64_t channels,
                                      int64_t first) {
    const Grid<const T>& x = problem_.large;
    const Key key{n, x.size[0] > 1 ? v : 0, b, first};
    if (std::exchange(key_, key) == key) return;
    const T* base =
        x.data + std::min(v, x.size[0] - 1) * x.stride[0] + n * x.stride[1] + b * x.stride[2];
    const int64_t count = std::min(slab_, down_ - first);
    for (int64_t tile = 0; tile < count; ++tile) {
      for (int64_t c = 0; c < channels; ++c) {
        for (int i = 0; i < P; ++i)
          copy_line(
              input_.data() + i * line_, problem_.small.size[5] + kTaps - 1, base + c * x.stride[2],
              x, kTile * (first + tile) - problem_.taps.padding[1] + i, -problem_.taps.padding[2]);
        T* to = lines_.data() + c * line_;
        for (int64_t q = 0; q < width_ + kTaps - 1; q += kWidth<T>) {
          Reg<T> in[P], out[P];
          for (int i = 0; i < P; ++i) in[i] = load(input_.data() + i * line_ + q);
          Points::windows(in, out);
          for (int i = 0; i < P; ++i) store(to + i * channels * line_ + q, out[i]);
        }
      }
      for (int i = 0; i < P; ++i) pack(lines_.data() + i * channels * line_, channels, i, tile);
    }
  }

  // The columns of a tile's lines at a point, in panels.
  void pack(const T* lines, int64_t channels, int64_t point, int64_t tile) {
    typedef T Part __attribute__((vector_size(16), aligned(sizeof(T)), may_alias));
    for (int64_t panel = 0; panel < panels_; ++panel) {
      T* to = windows_.data() + ((panel * P + point) * slab_ + tile) * width_ * kPartColumns;
      for (int vector = 0; vector < kPartVectors; ++vector)
        for (int part = 0; part < kParts; ++part) {
          // sum_parts() brings columns into their order.
          const int64_t column = panel * kPartColumns + vector / kPart<T> * kWidth<T> +
                                 part * kPart<T> + vector % kPart<T>;
          const bool inside = column < kTaps * channels;
          const T* from = lines + column / kTaps * line_ + column % kTaps;
          T* at = to + vector * kWidth<T> + part * kPart<T>;
          for (int64_t q = 0; q < width_; q += kPart<T>, at += kPartVectors * kWidth<T>)
            *reinterpret_cast<Part*>(at) =
                inside ? *reinterpret_cast<const Part*>(from + q) : Part{};
        }
    }
  }

  // positions[point][row][position of the piece]
  [[gnu::noinline]] void take_positions(int64_t n, int64_t v, int64_t a, int64_t rows,
                                        const Piece& piece) {
    const Grid<const T>& s = problem_.small;
    const T* base = s.data + std::min(v, s.size[0] - 1) * s.stride[0] + n * s.stride[1] +
                    a * s.stride[2] + piece.x * s.stride[5];
    const int64_t width = piece.width, inside = std::min(width, s.size[5] - piece.x);
    const int64_t pitch = s.stride[4], copy_pitch = kPiece + kWidth<T>;
    // Lines are read where they are if whole vectors of them are there.
    const bool dense = s.stride[5] == 1 && inside == width && width >= kWidth<T>;
    for (int64_t r = 0; r < rows; ++r, base += s.stride[2])
      for (int64_t i = 0; i < piece.tiles; ++i) {
        const int64_t y = kTile * (piece.tile + i);
        T* to = positions_.data() + r * kPiece + i * round_up(width, kWidth<T>);
        if (dense && y + kTile <= s.size[4]) {
          // A vector may end in the line below, if there is one.
          const bool below = y + kTile < s.size[4] && pitch >= width;
          take_tile(base + y * pitch, pitch, width, below ? width : width - kWidth<T>, to);
          continue;
        }
        for (int dy = 0; dy < kTile; ++dy) {
          T* line = copies_.data() + dy * copy_pitch;
          const int64_t filled = y + dy < s.size[4] ? inside : 0;
          copy_row(line, base + (y + dy) * pitch, filled, s.stride[5], Identity{});
          std::fill(line + filled, line + width, T(0));
        }
        take_tile(copies_.data(), copy_pitch, width, width, to);
      }
  }

  // A tile of a row, by vectors of which none begins after `last`.
  static void take_tile(const T* lines, int64_t pitch, int64_t width, int64_t last, T* to) {
    for (int64_t next = 0; next < width; next += kWidth<T>) {
      const int64_t x = std::min(next, last);
      Reg<T> in[kTile], out[P];
      for (int dy = 0; dy < kTile; ++dy) in[dy] = load(lines + dy * pitch + x);
      Points::positions(in, out);
      for (int py = 0; py < P; ++py) store(to + py * kPlane + x, out[py]);
    }
  }

  // Where the rows lie that come after a piece: those of other tiles, other rows or another column.
  const T* next_rows(int64_t n, int64_t v, int64_t a, int64_t r, int64_t rows,
                     const Piece& piece) const {
    const Grid<const T>& s = problem_.small;
    const int64_t below = kTile * (piece.tile + piece.tiles);
    if (below < s.size[4])
      return s.data + std::min(v, s.size[0] - 1) * s.stride[0] + n * s.stride[1] +
             (a + r) * s.stride[2] + below * s.stride[4];
    const bool end = r + kGroup >= rows;
    return s.data + std::min(v + end, s.size[0] - 1) * s.stride[0] + n * s.stride[1] +
           (end ? a : a + r + kGroup) * s.stride[2];
  }

  // Entries of a row's products.
  int64_t row_entries() const { return P * panels_ * kPartColumns; }

  // products[row][point][panel][vectors] (+)= sums over a piece of the slab from tile `first` on,
  // while what comes next is fetched.
  void multiply(T* products, int64_t rows, const Piece& piece, int64_t first, const T* next) {
    // Lines of whole tiles follow each other; a row of them is asked for at each point.
    static_assert(kGroup <= P);
    const Grid<const T>& s = problem_.small;
    const bool dense = s.stride[4] == s.size[5] && s.stride[5] == 1 && piece.width == width_;
    for (int py = 0; py < P; ++py)
      for (int64_t panel = 0; panel < panels_; ++panel) {
        const T* x =
            windows_.data() +
            (((panel * P + py) * slab_ + piece.tile - first) * width_ + piece.x) * kPartColumns;
        const int64_t row = std::min<int64_t>(py, rows - 1);
        part_rows<T, kRowsOfTile, kPiece>(
            positions_.data() + py * kPlane, rows,
            {piece.width / kPart<T>, piece.tiles, round_up(piece.width, kWidth<T>)}, x,
            products + (py * panels_ + panel) * kPartColumns, row_entries(),
            piece.tile > 0 || piece.x > 0,
            {next + row * s.stride[2], dense && panel == 0 && py < rows ? kTile * kPart<T> : 0});
      }
  }

  // The sums of rows from `first` on.
  template <class Sink>
  [[gnu::noinline]] void recover(const T* products, int64_t rows, int64_t first, Sink& sink) const {
    const int64_t pitch = panels_ * kPartColumns;
    Sink own = sink;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t q = 0; q < pitch; q += kWidth<T>) {
        Reg<T> in[P], out[kTaps];
        for (int p = 0; p < P; ++p) in[p] = load(products + (r * P + p) * pitch + q);
        Points::taps(in, out);
        for (int k = 0; k < kTaps; ++k) out[k] *= T(1) / T(Points::divisor);
        own((first + r) * kTaps * pitch + q, pitch, out);
      }
    sink = own;
  }

  using Key = std::array<int64_t, 4>;  // sample, column, channel and tile

  const Correlation<T>& problem_;
  int64_t width_, line_, panels_, down_, slab_;
  Scratch<T> input_, lines_, windows_, copies_, positions_, products_;
  Key key_{-1, -1, -1, -1};
};
