// Weight gradients with the columns of a window in the lanes of vectors.
//
// Lines of windows lie with their channels inside, [x][channel], zeros beside them, so that the
// columns of one line of taps follow each other: vectors are read where they are, whatever the
// stride, and rows are broadcast. Lines outside the source are left out.

template <class T>
class Columns {
 public:
  // Taps along the last axis follow each other, and lines of so many channels are not too long.
  static bool applies(const Correlation<T>& p, int64_t channels) {
    return (p.taps.dilation[2] == 1 || p.taps.kernel[2] == 1) &&
           lines_read(p) * width(p) * channels * int64_t(sizeof(T)) <= 2 * kBytes;
  }

  // [row][line of taps][tap][channel], lines in whole vectors
  static Layout layout(const Taps& taps, int64_t channels) {
    const int64_t line = round_up(taps.kernel[2] * channels, kWidth<T>);
    return {
        .row = taps.kernel[0] * taps.kernel[1] * line, .channel = 1, .tap = channels, .line = line};
  }

  // Instructions for a block of one sample and column, of `reuse` that share their windows.
  static double cost(const Correlation<T>& p, int64_t rows, int64_t channels, double reuse) {
    const Taps& taps = p.taps;
    const double lines = p.small.size[3] * p.small.size[4], nx = p.small.size[5];
    const double pieces = std::max(lines * nx / kLinePiece<T>, 1.0);
    const double sources = p.large.size[3] * p.large.size[4];
    const int64_t vectors = ceil_div(taps.kernel[2] * channels, kWidth<T>);
    constexpr double kProduct = 1.15, kWindow = 0.8;  // measured
    return kProduct * taps.kernel[0] * taps.kernel[1] *
               line_cost(rows, vectors, lines * nx, pieces) +
           rows * lines * nx * 4 / kWidth<T> +
           kWindow * sources * width(p) * channels / (slots(p, channels) == sources ? reuse : 1);
  }

  Columns(const Correlation<T>& p, int64_t channels)
      : problem_(p),
        channels_(channels),
        line_(width(p) * channels),
        keys_(slots(p, channels)),
        lines_(keys_.size() * line_),
        positions_(kLineGroup * kLinePiece<T>) {}

  // values (+)= rows [a, a + rows) of `small` times windows of channels [b, b + channels) of
  // `large`, of one sample and column, with a function applied to either. Lanes between values
  // have no meaning when they are added to, and are zero else.
  template <class F, class H>
  void multiply(T* values, const Grid<const T>& small, const Grid<const T>& large, int64_t n,
                int64_t v, int64_t a, int64_t rows, int64_t b, int64_t channels, bool accumulate,
                F of_small, H of_large) {
    const Layout layout = Columns::layout(problem_.taps, channels_);
    if (!accumulate) std::fill(values, values + layout.size(rows, channels_), T(0));
    const T *s = small.channel(v, n, a), *x = large.channel(v, n, b);
    each_piece(small, [&](const Piece& piece) {
      for (int64_t r = 0; r < rows; r += kLineGroup) {
        const int64_t some = std::min<int64_t>(kLineGroup, rows - r);
        take_rows(s + r * small.stride[2], small, some, piece, of_small);
        for (int64_t kz = 0; kz < problem_.taps.kernel[0]; ++kz)
          for (int64_t ky = 0; ky < problem_.taps.kernel[1]; ++ky) {
            const int64_t tap = kz * problem_.taps.kernel[1] + ky;
            add_line_of_taps(x, large, channels, piece, kz, ky, some,
                             values + r * layout.row + tap * layout.line, layout, of_large);
          }
      }
    });
    if (!accumulate) clear_between(values, rows, layout);
  }

 private:
  static constexpr int64_t kBytes = 256 << 10;  // of lines of windows held at a time, about

  // Some lines of positions one below the other, and some of their positions: whole lines, if
  // several.
  struct Piece {
    int64_t z, y, lines, x, width;
  };

  // What a line of windows was made from: its address, channels and whether they were squared.
  struct Key {
    const T* from = nullptr;
    int64_t channels = 0;
    bool squared = false;
    bool operator==(const Key&) const = default;
  };

  static int64_t width(const Correlation<T>& p) {
    return std::max<int64_t>(p.small.size[5] - 1, 0) * p.taps.stride[2] + p.taps.kernel[2];
  }

  // From the first to the last that the taps of a line of positions read.
  static int64_t lines_read(const Correlation<T>& p) {
    return (p.taps.kernel[1] - 1) * p.taps.dilation[1] + 1;
  }

  // Lines held: those, and more if they are small.
  static int64_t slots(const Correlation<T>& p, int64_t channels) {
    const int64_t afford = kBytes / std::max<int64_t>(1, width(p) * channels * sizeof(T));
    return std::clamp<int64_t>(std::max(afford, lines_read(p)), 1,
                               std::max<int64_t>(1, p.large.size[3] * p.large.size[4]));
  }

  template <class F>
  void each_piece(const Grid<const T>& small, F f) const {
    const int64_t nx = small.size[5];
    // A sum goes through several lines if all are held, one after the other.
    const bool all = int64_t(keys_.size()) == problem_.large.size[3] * problem_.large.size[4];
    const int64_t some = all && nx > 0 ? std::max<int64_t>(1, kLinePiece<T> / nx) : 1;
    // Else through parts of a line of nearly one length.
    const int64_t wide = ceil_div(nx, std::max<int64_t>(1, ceil_div(nx, kLinePiece<T>)));
    for (int64_t z = 0; z < small.size[3]; ++z)
      for (int64_t y = 0; y < small.size[4]; y += some)
        for (int64_t x = 0; x < nx; x += wide)
          f(Piece{z, y, std::min(some, small.size[4] - y), x, std::min(wide, nx - x)});
  }

  // positions[row][line][position of the piece]
  template <class F>
  [[gnu::noinline]] void take_rows(const T* s, const Grid<const T>& small, int64_t rows,
                                   const Piece& piece, F f) {
    s += piece.z * small.stride[3] + piece.y * small.stride[4] + piece.x * small.stride[5];
    int64_t lines = piece.lines, width = piece.width;
    if (small.stride[4] == width * small.stride[5]) width *= std::exchange(lines, 1);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t y = 0; y < lines; ++y) {
        const T* from = s + r * small.stride[2] + y * small.stride[4];
        copy_row(positions_.data() + r * kLinePiece<T> + y * width, from, width, small.stride[5],
                 f);
        // Mostly of the next piece, for the second-level cache: rows may meet in a set of the
        // first.
        for (int64_t i = 0; small.stride[5] == 1 && i < width; i += 64 / sizeof(T))
          __builtin_prefetch(from + width + i, 0, 1);
      }
  }

  // sums of rows (+)= positions times windows at a line of taps
  template <class F>
  void add_line_of_taps(const T* x, const Grid<const T>& large, int64_t channels,
                        const Piece& piece, int64_t kz, int64_t ky, int64_t rows, T* sums,
                        const Layout& layout, F f) {
    const Taps& taps = problem_.taps;
    const int64_t z = piece.z * taps.stride[0] + kz * taps.dilation[0] - taps.padding[0];
    if (z < 0 || z >= large.size[3]) return;
    // The lines of the piece that read the source: line i reads first + i * stride.
    const int64_t stride = taps.stride[1];
    const int64_t first = piece.y * stride + ky * taps.dilation[1] - taps.padding[1];
    const int64_t begin = std::clamp<int64_t>(ceil_div(-first, stride), 0, piece.lines);
    const int64_t end =
        std::clamp<int64_t>(ceil_div(large.size[4] - first, stride), begin, piece.lines);
    if (begin == end) return;
    for (int64_t i = end - 1; i > begin; --i) line(x, large, channels, z, first + i * stride, f);
    const T* windows = line(x, large, channels, z, first + begin * stride, f) +
                       piece.x * taps.stride[2] * channels_;
    Ahead<T> none{windows, windows, 0};
    line_columns<T>(positions_.data() + begin * piece.width, rows, windows,
                    taps.stride[2] * channels_, taps.kernel[2] * channels_,
                    {piece.width, end - begin, piece.width, stride * line_}, sums, layout.row, true,
                    none);
  }

  // Line (z, y) of the channels, side by side.
  template <class F>
  const T* line(const T* x, const Grid<const T>& large, int64_t channels, int64_t z, int64_t y,
                F f) {
    const int64_t slot = (z * large.size[4] + y) % keys_.size();
    T* to = lines_.data() + slot * line_;
    const T* from = x + z * large.stride[3] + y * large.stride[4];
    const Key key{from, channels, std::is_same_v<F, Square>};
    if (std::exchange(keys_[slot], key) == key) return to;
    const int64_t left = problem_.taps.padding[2], width = line_ / std::max<int64_t>(1, channels_);
    const int64_t lo = std::clamp<int64_t>(left, 0, width);
    const int64_t hi = std::clamp<int64_t>(large.size[5] + left, lo, width);
    if (channels < channels_) std::fill(to, to + line_, T(0));
    interleave(to + lo * channels_, channels_, from + (lo - left) * large.stride[5],
               large.stride[5], large.stride[2], channels, hi - lo, {}, f);
    return to;
  }

  void clear_between(T* values, int64_t rows, const Layout& layout) const {
    const int64_t columns = problem_.taps.kernel[2] * channels_;
    if (columns == layout.line) return;
    for (T *at = values, *end = values + rows * layout.row; at < end; at += layout.line)
      std::fill(at + columns, at + layout.line, T(0));
  }

  const Correlation<T>& problem_;
  int64_t channels_, line_;
  std::vector<Key> keys_;
  Scratch<T> lines_, positions_;
};
