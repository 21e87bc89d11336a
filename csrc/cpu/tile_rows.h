// Per-sample weight gradients of 5 x 5 convolutions from few channels to many rows.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// The sums of tile_transform.h on tiles of 2 x 2 positions, with vectors along the rows. Each value
// at a point meets few channels, so it would cost more to store than to multiply: positions are
// held at the points of the vertical axis only, [point][tile][column of the tile][row], of a slab
// and some rows, and taken to a horizontal point in registers. Windows are those of tile_windows.h.

template <class T, int kTaps>
class TileRows {
  static constexpr int kTile = 2;
  static constexpr int kVectors = 4, kWide = kVectors * kWidth<T>;  // rows at a time
  using Points = PointTransform<T, kTaps, kTile>;
  static constexpr int P = Points::points, kPlanes = P * P;

 public:
  static bool applies(const Correlation<T>& p) {
    return TileTransform<T, kTaps, kTile>::applies(p);
  }

  static bool rows_inside(int64_t, int64_t) { return true; }
  // Entries from tap to tap: products are made of two vectors or four.
  static int64_t pitch(int64_t rows, int64_t) { return round_up(rows, 2 * kWidth<T>); }

  // Instructions for a block of one sample and column, of `reuse` that share their windows.
  static double cost(const Correlation<T>& p, int64_t rows, int64_t channels, double reuse) {
    const TileGrid<T> tiles = tiling(p);
    const double all = double(tiles.down) * tiles.across, slabs = tiles.slabs();
    // Two vectors have too few sums to keep the units busy.
    const int64_t rest = rows % kWide;
    const double narrow = rest == 0 ? 0 : rest > 2 * kWidth<T> ? kVectors : 2.8;
    const double vectors = rows / kWide * kVectors + narrow;
    const double products = channels / 3 * 3 + channels % 3 * 2.25;
    const bool held = TileWindows<T, kTaps>::slots(channels, tiles) == slabs;
    return vectors * products * kPlanes * (1.1 * all + 4 * slabs) + vectors * all * 70 +
           channels * (all / kWidth<T> + 1) * 10 * kPlanes / (held ? reuse : 1) +
           vectors * channels * 5 * kPlanes;
  }

  TileRows(const Correlation<T>& p, int64_t rows, int64_t channels)
      : problem_(p),
        channels_(channels),
        inner_(pitch(rows, channels)),
        tiles_(tiling(p)),
        windows_(p, channels, tiles_),
        positions_(P * plane()),
        products_(kPlanes * channels * inner_) {}

  // sink(at, pitch, g): vectors of G of rows [a, a + rows) and channels [b, b + channels), at
  // entries at, at + pitch, ... of [channel][tap][row].
  template <class Sink>
  void visit(int64_t n, int64_t v, int64_t a, int64_t rows, int64_t b, int64_t channels,
             Sink& sink) {
    for (int64_t slab = 0; slab < tiles_.slabs(); ++slab) {
      const T* windows = windows_.planes(slab, n, v, b, channels);
      for (int64_t r = 0; r < rows; r += kWide) {
        const int64_t lanes = std::min<int64_t>(kWide, rows - r);
        transform_positions(n, v, a + r, lanes, slab);
        const bool within = r + kWide < rows, last = !within && slab + 1 == tiles_.slabs();
        // What comes next: other rows, another slab or another column.
        auto fetch = [&](int64_t part, int64_t parts) {
          const int64_t next = within ? slab : last ? 0 : slab + 1;
          fetch_lines(problem_.small, v + last, n, within ? a + r + kWide : a, kWide,
                      kTile * tiles_.first(next), kTile * tiles_.slab, part, parts);
        };
        if (lanes > 2 * kWidth<T>)
          multiply<4>(windows, channels, r, slab, fetch);
        else
          multiply<2>(windows, channels, r, slab, fetch);
      }
    }
    recover_rows<T, kTaps, kTile>(products_.data(), channels_ * inner_, inner_, channels, rows, 0,
                                  inner_, sink);
  }

 private:
  static TileGrid<T> tiling(const Correlation<T>& p) {
    constexpr int64_t kPositionBytes = 48 << 10;
    return {p, kPositionBytes, static_cast<int64_t>(2 * P * kWide * sizeof(T))};
  }
  int64_t plane() const { return tiles_.slab * tiles_.across * 2 * kWide; }

  // The first and the last point are the even and the odd lines themselves.
  [[gnu::noinline]] void transform_positions(int64_t n, int64_t v, int64_t row, int64_t rows,
                                             int64_t slab) {
    const int64_t step = plane(), count = tiles_.count(slab);
    for (int odd = 0; odd < 2; ++odd) {
      Grid<const T> lines = problem_.small;
      lines.data += odd * lines.stride[4];
      lines.size[4] = (lines.size[4] + 1 - odd) / 2;
      lines.stride[4] *= 2;
      channels_last(positions_.data() + odd * (P - 1) * step, kWide, lines, v, n, row, rows,
                    tiles_.first(slab), count, 0, 2 * tiles_.across);
    }
    for (int64_t q = 0; q < 2 * count * tiles_.across; ++q)
      for (int64_t c = 0; c < rows; c += kWidth<T>) {
        T* at = positions_.data() + q * kWide + c;
        const Reg<T> in[2] = {load(at), load(at + (P - 1) * step)};
        Reg<T> out[P];
        Points::positions(in, out);
        for (int p = 1; p < P - 1; ++p) store(at + p * step, out[p]);
      }
  }

  // products[point][channel][r, ...] (+)= sum over the slab's tiles, for the rows held, while those
  // that come next are fetched.
  template <int C, class Fetch>
  void multiply(const T* windows, int64_t channels, int64_t r, int64_t slab, Fetch fetch) {
    const int64_t tiles = tiles_.count(slab) * tiles_.across, pitch = windows_.pitch();
    for (int py = 0; py < P; ++py) {
      fetch(py, P);
      auto at_point = [&]<int px>() {
        const T* x = windows + (py * P + px) * channels_ * pitch;
        T* products = products_.data() + (py * P + px) * channels_ * inner_ + r;
        const T* positions = positions_.data() + py * plane();
        int64_t c = 0;
        for (; c + 3 <= channels; c += 3)
          multiply_point<3, C, px>(positions, x + c * pitch, pitch, tiles, products + c * inner_,
                                   inner_, slab > 0);
        for (; c < channels; ++c)
          multiply_point<1, C, px>(positions, x + c * pitch, pitch, tiles, products + c * inner_,
                                   inner_, slab > 0);
      };
      [&]<int... px>(std::integer_sequence<int, px...>) {
        (at_point.template operator()<px>(), ...);
      }(std::make_integer_sequence<int, P>{});
    }
  }

  // c[i][j] (+)= sum_t x[i][t] * (positions j of tile t at the point), on R channels and C vectors
  template <int R, int C, int px>
  [[gnu::noinline]] static void multiply_point(const T* __restrict s, const T* __restrict x,
                                               int64_t pitch, int64_t tiles, T* __restrict c,
                                               int64_t c_pitch, bool accumulate) {
    Reg<T> acc[R][C] = {};
    int64_t t = 0;
    // There is a tile: a loop that may be empty would keep the sums in memory.
    do {
      Reg<T> window[R];
      for (int i = 0; i < R; ++i) window[i] = broadcast(x[i * pitch + t]);
      for (int j = 0; j < C; ++j) {
        const T* first = s + j * kWidth<T>;
        const Reg<T> value = Points::template position<px>(first, first + kWide);
        for (int i = 0; i < R; ++i)
          acc[i][j] = Points::template add_product<px>(acc[i][j], value, window[i]);
      }
      s += 2 * kWide;
    } while (++t < tiles);
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < C; ++j) {
        T* at = c + i * c_pitch + j * kWidth<T>;
        store(at, accumulate ? load(at) + acc[i][j] : acc[i][j]);
      }
  }

  const Correlation<T>& problem_;
  int64_t channels_, inner_;
  TileGrid<T> tiles_;
  TileWindows<T, kTaps> windows_;
  Scratch<T> positions_, products_;
};
