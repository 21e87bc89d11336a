// Direct products with rows in the lanes of vectors, for many rows: rows are transposed into panels
// [position][lanes], and entries of the images are broadcast.

template <class T>
class RowsInLanes {
 public:
  static Planes planes(const Correlation<T>& p, int64_t channels) {
    return Planes::make<T>(p.axes, channels, tuning::kImageBytes, tuning::kPanelPositions);
  }

  static Layout layout(const Correlation<T>& p, int64_t rows, int64_t) {
    const int64_t pitch = round_up(rows, kWidth<T>);
    return {1, p.kernel * pitch, pitch};
  }

  // Instructions beside those that fill the images.
  static double cost(const Correlation<T>& p, const Planes& planes, int64_t rows,
                     int64_t channels) {
    const int64_t vectors = ceil_div(rows, kWidth<T>);
    if (vectors * kWidth<T> * planes.positions(0) * int64_t(sizeof(T)) > tuning::kPanelBytes)
      return std::numeric_limits<double>::infinity();
    double products = 0;
    each_panel(vectors, [&](int64_t, int64_t some) { products += tuning::kPanelCost[some - 1]; });
    return products * channels * p.kernel * (p.positions + tuning::kStored * planes.row_blocks()) +
           tuning::kTransposed * vectors * kWidth<T> * p.positions;
  }

  // Samples whose positions fill a panel.
  static int64_t together(const Correlation<T>& p, const Planes& planes) {
    if (planes.row_blocks() != 1 || p.columns > 1) return 1;
    return std::max<int64_t>(1, std::min(tuning::kPanelPositions / p.positions, p.samples));
  }

  RowsInLanes(const Correlation<T>& p, const Planes& planes, int64_t rows, int64_t channels)
      : planes_(planes),
        pitch_(round_up(rows, kWidth<T>)),
        panels_(pitch_ * together(p, planes) * planes.positions(0),
                pitch_ * together(p, planes) * planes.positions(0)) {
    const auto taps = planes.tap_offsets(p.taps.kernel);
    const int64_t ty = planes.axes[1].taps.size(), nx = planes.axes[2].taps.size();
    const int64_t lines = planes.axes[0].taps.size() * ty;
    auto add = [&](std::span<const std::pair<int64_t, int64_t>> some, int64_t z, int64_t y) {
      TapGroup group{{}, {}, int64_t(some.size()), z, y};
      for (int64_t b = 0; b < channels; ++b)
        for (const auto& [offset, index] : some) {
          group.offsets.push_back(b * planes.phases * planes.plane + offset);
          group.columns.push_back(b * p.kernel + index);
        }
      groups_.push_back(group);
    };
    const bool whole = planes.within(0) * planes.within(1) > 0.95;
    if (whole) add(taps, -1, -1);
    for (int64_t i = 0; !whole && i < lines; ++i)
      add(std::span(taps).subspan(i * nx, nx), i / ty, i % ty);
  }

  // Rows [a, a + rows) of the samples, with a function applied.
  template <class F>
  void take(const Grid<const T>& s, int64_t v, const Samples& samples, int64_t a, int64_t rows,
            int64_t row_block, F f) {
    int64_t nx = planes_.count(2, row_block), ny = planes_.count(1, row_block);
    if (s.stride[4] == nx * s.stride[5]) nx *= std::exchange(ny, 1);  // lines that are one
    const int64_t positions = planes_.positions(row_block);
    each_panel(ceil_div(rows, kWidth<T>), [&](int64_t first, int64_t vectors) {
      const int64_t width = vectors * kWidth<T>, count = std::min(width, rows - first);
      T* to = panels_.data() + first * samples.count() * positions;
      for (int64_t n = samples.first; n < samples.last; ++n) {
        const T* from = s.channel(v, n, a + first);
        for (int d = 0; d < 3; ++d) from += planes_.begin(d, row_block) * s.stride[3 + d];
        for (int64_t z = 0; z < planes_.count(0, row_block); ++z, to += ny * nx * width)
          interleave(to, width, from + z * s.stride[3], s.stride[5], s.stride[2], count, nx,
                     {ny, nx * width, s.stride[4]}, f);
      }
      for (T* at = panels_.data() + first * samples.count() * positions; count < width && at < to;
           at += width)
        std::fill(at + count, at + width, T(0));
    });
  }

  // values (+)= rows times windows of the images, which are `step` apart for each of the samples.
  void multiply(const T* images, int64_t step, int64_t samples, int64_t rows, int64_t channels,
                int64_t row_block, T* values, bool accumulate) {
    for (const TapGroup& group : groups_) {
      find_lines(group, step, samples, row_block);
      each_panel(ceil_div(rows, kWidth<T>), [&](int64_t first, int64_t vectors) {
        const T* panel = panels_.data() + first * samples * planes_.positions(row_block);
        outer_panel<T>(ShiftedLines<T>{images, panel, vectors * kWidth<T>, group.offsets.data(),
                                       &lines_.front(), &lines_.back()},
                       channels * group.taps, vectors * kWidth<T>,
                       StoreListed<T>{values + first, group.columns.data(), pitch_, accumulate});
      });
    }
  }

 private:
  // Taps that leave out the same lines of positions: those of one line of the kernel, or all, if
  // next to no line would be left out.
  struct TapGroup {
    std::vector<int64_t> offsets, columns;  // of all channels, one after the other
    int64_t taps;                           // of a channel
    int64_t z, y;                           // the taps of the axes, if it is one line
  };

  // f(first row, vectors): rows by three vectors, two or one.
  template <class F>
  static void each_panel(int64_t vectors, F f) {
    for (int64_t first = 0, some; first < vectors; first += some) {
      some = vectors - first == 4 ? 2 : std::min<int64_t>(kColumns, vectors - first);
      f(first * kWidth<T>, some);
    }
  }

  // The lines that a group reads: at least one, even if it has zeros alone.
  void find_lines(const TapGroup& group, int64_t step, int64_t samples, int64_t row_block) {
    const int64_t nz = planes_.count(0, row_block), ny = planes_.count(1, row_block);
    const int64_t nx = planes_.count(2, row_block);
    std::pair all_z{int64_t(0), nz}, all_y{int64_t(0), ny};
    if (group.z >= 0) {
      all_z = planes_.inside(0, group.z, row_block);
      all_y = planes_.inside(1, group.y, row_block);
    }
    lines_.clear();
    for (int64_t n = 0; n < samples; ++n)
      for (int64_t z = all_z.first; z < all_z.second; ++z)
        for (int64_t y = all_y.first; y < all_y.second; ++y)
          lines_.push_back({((n * nz + z) * ny + y) * nx, n * step + planes_.row(z, y), nx});
    if (lines_.empty()) lines_.push_back({0, 0, nx});
  }

  const Planes& planes_;
  int64_t pitch_;
  Scratch<T> panels_;
  std::vector<TapGroup> groups_;
  std::vector<Line> lines_;
};
