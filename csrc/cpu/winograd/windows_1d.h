// Windows of a correlation at the points of winograd/toom_cook.h along the vertical axis, for
// winograd/one_axis_positions.h.
//
// Columns are pairs of a channel and a horizontal tap. Both kinds hold the windows of a slab of
// tiles until other ones are asked for, and multiply them by positions.

// Few columns: a vector holds kPart positions of some columns, which are pieces of lines as they
// lie, and meets the same positions of a row, repeated. Sums end with those of the vector's parts.
template <class T, int kTaps>
class LineParts {
  using Shape = LineShape<T, kTaps>;
  using Points = typename Shape::Points;
  static constexpr int P = Shape::P;
  static constexpr int kRowsOfTile = kManyRegisters ? 6 : 3;

 public:
  // Positions and rows that are multiplied at a time.
  static constexpr int64_t kPiece = 512 / sizeof(T), kGroup = 6;
  static constexpr int64_t kStep = kPart<T>;  // positions

  // [row][line of taps][channel][tap], lines in whole panels
  static Layout layout(int64_t channels) {
    const int64_t line = round_up(kTaps * channels, kPartColumns);
    return {.row = kTaps * line, .channel = kTaps, .tap = 1, .line = line};
  }

  static Shape shape(const Correlation<T>& p, int64_t channels) {
    return {p, channels,
            round_up(p.small.size[5], kPart<T>) * round_up(kTaps * channels, kPartColumns)};
  }

  // Instructions for the products of a line of positions at a point, those of `pieces` pieces, and
  // for the windows.
  static double product_cost(int64_t rows, int64_t channels, double nx, double pieces) {
    const double panels = ceil_div(kTaps * channels, kPartColumns);
    // A tile of few rows waits for its windows.
    const double busy = rows + (rows % kRowsOfTile == 0 ? 0 : 1);
    constexpr double kProduct = kVectorBytes == 64 ? 1.1 : 1.3;  // measured
    return busy * panels * (kProduct * kPartVectors / kPart<T> * nx + 12 * pieces);
  }
  static double window_cost(int64_t channels, double nx) {
    const double panels = ceil_div(kTaps * channels, kPartColumns);
    return channels * (nx / kWidth<T> + 1) * 12 + panels * kPartVectors / kPart<T> * nx * 10;
  }

  LineParts(const Correlation<T>& p, int64_t channels)
      : problem_(p),
        shape_(shape(p, channels)),
        width_(round_up(shape_.positions, kPart<T>)),
        line_(shape_.width() + kPart<T> + kWidth<T>),
        panels_(ceil_div(kTaps * channels, kPartColumns)),
        input_(P * line_),
        lines_(P * channels * line_),
        windows_(P * panels_ * panel(), P * panels_ * panel()) {}

  const Shape& shape() const { return shape_; }
  int64_t passes() const { return panels_; }  // over a row

  void take(const T* base, int64_t y, int64_t tile, int64_t channels) {
    const Grid<const T>& x = problem_.large;
    for (int64_t c = 0; c < channels; ++c) {
      for (int i = 0; i < P; ++i)
        copy_line(input_.data() + i * line_, shape_.width(), base + c * x.stride[2], x, y + i,
                  -problem_.taps.padding[2]);
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

  // c[columns of each of the rows] (+)= s times the windows at a point
  void multiply(const T* s, int64_t rows, int64_t point, int64_t tile, int64_t x, LineSteps all,
                T* c, int64_t c_pitch, bool accumulate, Ahead<T>& ahead) const {
    all.x_pitch = width_ * kPartColumns;
    const T* from = windows_.data() + point * panel() + (tile * width_ + x) * kPartColumns;
    for (int64_t i = 0; i < panels_; ++i, from += P * panel(), c += kPartColumns) {
      part_rows<T, kRowsOfTile, kPiece>(s, rows, from, all, c, c_pitch, accumulate, ahead);
      ahead.advance(all);
    }
  }

 private:
  int64_t panel() const { return shape_.slab * width_ * kPartColumns; }  // at a point

  // The columns of a tile's lines at a point, in panels.
  void pack(const T* lines, int64_t channels, int64_t point, int64_t tile) {
    typedef T Part __attribute__((vector_size(16), aligned(sizeof(T)), may_alias));
    for (int64_t i = 0; i < panels_; ++i) {
      T* to = windows_.data() + (i * P + point) * panel() + tile * width_ * kPartColumns;
      for (int vector = 0; vector < kPartVectors; ++vector)
        for (int part = 0; part < kParts; ++part) {
          // sum_parts() brings columns into their order.
          const int64_t column = i * kPartColumns + vector / kPart<T> * kWidth<T> +
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

  const Correlation<T>& problem_;
  Shape shape_;
  int64_t width_, line_, panels_;
  Scratch<T> input_, lines_, windows_;
};

// Many columns: lines lie with their channels inside, [x][channel], so that the columns of a window
// follow each other. Vectors run along them and are read where they are; rows are broadcast.
template <class T, int kTaps>
class LineChannels {
  using Shape = LineShape<T, kTaps>;
  using Points = typename Shape::Points;
  static constexpr int P = Shape::P;

 public:
  static constexpr int64_t kPiece = kLinePiece<T>, kGroup = kLineGroup;
  static constexpr int64_t kStep = 1;

  // [row][line of taps][tap][channel], lines in whole vectors
  static Layout layout(int64_t channels) {
    const int64_t line = round_up(kTaps * channels, kWidth<T>);
    return {.row = kTaps * line, .channel = 1, .tap = channels, .line = line};
  }

  static Shape shape(const Correlation<T>& p, int64_t channels) {
    return {p, channels, (p.small.size[5] + kTaps - 1) * channels};
  }

  static double product_cost(int64_t rows, int64_t channels, double nx, double pieces) {
    return line_cost(rows, ceil_div(kTaps * channels, kWidth<T>), nx, pieces);
  }
  static double window_cost(int64_t channels, double nx) {
    return (nx + kTaps - 1) * channels * (5.0 / kWidth<T> + 1.0 * Shape::kTile / P);
  }

  LineChannels(const Correlation<T>& p, int64_t channels)
      : problem_(p),
        shape_(shape(p, channels)),
        line_(shape_.width() * channels),
        plane_(shape_.slab * line_ + kWidth<T>),
        input_(P * line_),
        windows_(P * plane_) {}

  const Shape& shape() const { return shape_; }
  int64_t passes() const { return line_passes<T>(kTaps * shape_.channels); }

  void take(const T* base, int64_t y, int64_t tile, int64_t channels) {
    for (int i = 0; i < P; ++i) take_line(input_.data() + i * line_, base, y + i, channels);
    for (int64_t q = 0; q < line_; q += kWidth<T>) {
      Reg<T> in[P], out[P];
      for (int i = 0; i < P; ++i) in[i] = load(input_.data() + i * line_ + q);
      Points::windows(in, out);
      // What goes across the end of a line is overwritten by the next, or lies behind the last.
      T* to = windows_.data() + tile * line_ + q;
      for (int i = 0; i < P; ++i) store(to + i * plane_, out[i]);
    }
  }

  void multiply(const T* s, int64_t rows, int64_t point, int64_t tile, int64_t x, LineSteps all,
                T* c, int64_t c_pitch, bool accumulate, Ahead<T>& ahead) const {
    all.x_pitch = line_;
    const int64_t channels = shape_.channels;
    const T* from = windows_.data() + point * plane_ + tile * line_ + x * channels;
    line_columns(s, rows, from, channels, kTaps * channels, all, c, c_pitch, accumulate, ahead);
  }

 private:
  // Line y of the channels, side by side, zeros outside and for channels that are not there.
  void take_line(T* line, const T* base, int64_t y, int64_t channels) const {
    const Grid<const T>& x = problem_.large;
    const int64_t left = problem_.taps.padding[2], width = shape_.width();
    const int64_t lo = std::clamp<int64_t>(left, 0, width);
    const int64_t hi = std::clamp<int64_t>(x.size[5] + left, lo, width);
    const bool inside = y >= 0 && y < x.size[4];
    if (!inside || channels < shape_.channels || lo > 0 || hi < width)
      std::fill(line, line + line_, T(0));
    if (inside)
      interleave(line + lo * shape_.channels, shape_.channels,
                 base + y * x.stride[4] + (lo - left) * x.stride[5], x.stride[5], x.stride[2],
                 channels, hi - lo);
  }

  const Correlation<T>& problem_;
  Shape shape_;
  int64_t line_, plane_;
  Scratch<T> input_, windows_;
};
