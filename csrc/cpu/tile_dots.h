// Per-sample weight gradients of 3 x 3 and 5 x 5 convolutions of few channels with fewer products.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// The sums of tile_transform.h on tiles of 2 x 2 positions, with vectors along the tiles: neither
// operand is turned, and a sum over tiles ends with the sum of a vector's lanes. Positions are held
// at the points of the vertical axis only, [point][column of the tile][row][tile], and taken to a
// horizontal point where they are used: a few rows of a slab, in the first-level cache. Windows are
// those of tile_windows.h.

template <class T, int kTaps>
class TileDots {
  static constexpr int kTile = 2, kGroup = 4;  // rows at a time
  using Points = PointTransform<T, kTaps, kTile>;
  static constexpr int P = Points::points, kPlanes = P * P;

 public:
  static bool applies(const Correlation<T>& p) {
    return TileTransform<T, kTaps, kTile>::applies(p);
  }

  // Entries from tap to tap.
  static int64_t pitch(int64_t rows, int64_t) {
    return round_up(rows, std::max<int64_t>(kWidth<T>, kGroup));
  }

  static Layout layout(int64_t rows, int64_t channels) {
    return tap_planes(true, kTaps, pitch(rows, channels));
  }

  // Instructions for a block of one sample and column, of `reuse` that share their windows.
  static double cost(const Correlation<T>& p, int64_t rows, int64_t channels, double reuse) {
    const TileGrid<T> tiles = tiling(p);
    const double vectors = double(tiles.down) * tiles.across / kWidth<T> + 1;
    const double lanes = round_up(rows, kGroup), slabs = tiles.slabs();
    const bool held = TileWindows<T, kTaps>::slots(channels, tiles) == slabs;
    // Measured: vectors across lines of the cache, and few of them.
    constexpr double kShifted = kVectorBytes == 64 ? 3.5 : 1;
    return kShifted *
           (lanes * channels * kPlanes * (1.2 * vectors + 5 * slabs) + lanes * vectors * 8 * P +
            channels * vectors * 10 * kPlanes / (held ? reuse : 1) +
            ceil_div(rows, kWidth<T>) * channels * 10 * kPlanes);
  }

  TileDots(const Correlation<T>& p, int64_t rows, int64_t channels)
      : problem_(p),
        channels_(channels),
        inner_(pitch(rows, channels)),
        tiles_(tiling(p)),
        windows_(p, channels, tiles_),
        lines_(2 * line_length()),
        positions_(2 * P * kGroup * length()),
        products_(kPlanes * channels * inner_) {}

  // sink(at, pitch, g): vectors of G of rows [a, a + rows) and channels [b, b + channels), at
  // entries at, at + pitch, ... of [channel][tap][row].
  template <class Sink>
  void visit(int64_t n, int64_t v, int64_t a, int64_t rows, int64_t b, int64_t channels,
             Sink& sink) {
    for (int64_t slab = 0; slab < tiles_.slabs(); ++slab) {
      const int64_t first = tiles_.first(slab), count = tiles_.count(slab);
      const T* windows = windows_.planes(slab, n, v, b, channels);
      // Lanes of rows that are not there are zeros, like the weights they meet.
      for (int64_t r = 0; r < pitch(rows, channels); r += kGroup) {
        for (int64_t i = 0; i < kGroup; ++i)
          transform_positions(n, v, a + r + i, r + i < rows, i, first, count);
        int64_t c = 0;
        for (; c + 3 <= channels; c += 3) multiply<3>(windows, c, r, count, slab > 0);
        for (; c < channels; ++c) multiply<1>(windows, c, r, count, slab > 0);
      }
    }
    recover_rows<T, kTaps, kTile>(products_.data(), channels_ * inner_, inner_, channels, rows, 0,
                                  inner_, sink);
  }

 private:
  static TileGrid<T> tiling(const Correlation<T>& p) {
    constexpr int64_t kPositionBytes = 40 << 10;
    return {p, kPositionBytes, static_cast<int64_t>(2 * P * kGroup * sizeof(T))};
  }
  int64_t length() const { return windows_.pitch(); }
  // Columns of a line in whole pairs of vectors.
  int64_t line_length() const { return round_up(2 * tiles_.across, 2 * kWidth<T>); }

  // positions[point][column][i][tile] of one row, or zeros
  [[gnu::noinline]] void transform_positions(int64_t n, int64_t v, int64_t row, bool inside,
                                             int64_t i, int64_t first, int64_t count) {
    const Grid<const T>& s = problem_.small;
    const int64_t step = kGroup * length();
    T* const to = positions_.data() + i * length();
    const T* base =
        s.data + std::min(v, s.size[0] - 1) * s.stride[0] + n * s.stride[1] + row * s.stride[2];
    // A line is read in place where that stays within the channel: what follows it is overwritten.
    const int64_t reach = line_length();
    const int64_t extent = (s.size[4] - 1) * s.stride[4] + s.size[5];
    const bool plain = s.stride[5] == 1 && s.stride[4] >= s.size[5] && s.size[5] % 2 == 0;
    for (int64_t ty = 0; inside && ty < count; ++ty) {
      const T* lines[2];
      for (int dy = 0; dy < 2; ++dy) {
        const int64_t y = kTile * (first + ty) + dy;
        T* line = lines_.data() + dy * line_length();
        lines[dy] = base + y * s.stride[4];
        if (!plain || y * s.stride[4] + reach > extent) {
          copy_line(line, reach, base, s, y, 0);
          lines[dy] = line;
        }
      }
      for (int64_t tx = 0; tx < tiles_.across; tx += kWidth<T>) {
        Reg<T> low[2], high[2], out[P];
        for (int dy = 0; dy < 2; ++dy) {
          // The rows that come next: the hardware alone would fetch them too late.
          __builtin_prefetch(lines[dy] + 2 * tx + kGroup * s.stride[2]);
          low[dy] = load(lines[dy] + 2 * tx);
          high[dy] = load(lines[dy] + 2 * tx + kWidth<T>);
        }
        T* tile = to + ty * tiles_.across + tx;
        const Reg<T> even[2] = {every_other<T, 0>(low[0], high[0]),
                                every_other<T, 0>(low[1], high[1])};
        Points::positions(even, out);
        for (int py = 0; py < P; ++py) store(tile + 2 * py * step, out[py]);
        const Reg<T> odd[2] = {every_other<T, 1>(low[0], high[0]),
                               every_other<T, 1>(low[1], high[1])};
        Points::positions(odd, out);
        for (int py = 0; py < P; ++py) store(tile + (2 * py + 1) * step, out[py]);
      }
    }
    // Behind the last tile, or everywhere for a row that is not there.
    const int64_t used = count * tiles_.across;
    for (T* plane = to; plane < to + 2 * P * step; plane += step)
      std::fill(plane + (inside ? used : 0), plane + round_up(used, kWidth<T>), T(0));
  }

  // products[point][c, ...][r, ...] (+)= sum over the slab's tiles, for the rows held
  template <int C>
  void multiply(const T* windows, int64_t c, int64_t r, int64_t count, bool accumulate) {
    const int64_t used = round_up(count * tiles_.across, kWidth<T>), pitch = length();
    for (int py = 0; py < P; ++py) {
      auto at_point = [&]<int px>() {
        const int64_t point = (py * P + px) * channels_ + c;
        multiply_group<C, px>(positions_.data() + 2 * py * kGroup * pitch, kGroup * pitch,
                              windows + point * pitch, pitch, used,
                              products_.data() + point * inner_ + r, accumulate);
      };
      [&]<int... px>(std::integer_sequence<int, px...>) {
        (at_point.template operator()<px>(), ...);
      }(std::make_integer_sequence<int, P>{});
    }
  }

  template <int C, int px>
  [[gnu::noinline]] void multiply_group(const T* s, int64_t column, const T* x, int64_t pitch,
                                        int64_t used, T* products, bool accumulate) const {
    Reg<T> acc[C][kGroup] = {};
    int64_t q = 0;
    // There is a tile: a loop that may be empty would keep the sums in memory.
    do {
      Reg<T> columns[C];
      for (int j = 0; j < C; ++j) columns[j] = load(x + j * pitch + q);
      for (int i = 0; i < kGroup; ++i) {
        const T* first = s + i * pitch + q;
        const Reg<T> value = Points::template position<px>(first, first + column);
        for (int j = 0; j < C; ++j)
          acc[j][i] = Points::template add_product<px>(acc[j][i], value, columns[j]);
      }
    } while ((q += kWidth<T>) < used);
    for (int j = 0; j < C; ++j) {
      T sums[kGroup];
      sum_each<kGroup>(acc[j], sums);
      T* to = products + j * inner_;
      for (int i = 0; i < kGroup; ++i) to[i] = accumulate ? to[i] + sums[i] : sums[i];
    }
  }

  const Correlation<T>& problem_;
  int64_t channels_, inner_;
  TileGrid<T> tiles_;
  TileWindows<T, kTaps> windows_;
  Scratch<T> lines_, positions_, products_;
};
