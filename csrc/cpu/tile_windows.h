// Windows of a correlation at the points of point_transform.h, with vectors along the tiles.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// Tiles are 2 x 2 positions; a slab is some rows of them. Planes [points^2][channel][tile] of all
// slabs are held if they fit the second-level cache, as the columns of a sample share them.

// Line y of a channel from column x0 on, zeros outside.
template <class T>
void copy_line(T* line, int64_t width, const T* channel, const Grid<const T>& from, int64_t y,
               int64_t x0) {
  const int64_t lo = std::clamp<int64_t>(-x0, 0, width);
  const int64_t hi = std::clamp<int64_t>(from.size[5] - x0, lo, width);
  if (y < 0 || y >= from.size[4]) {
    std::fill(line, line + width, T(0));
    return;
  }
  std::fill(line, line + lo, T(0));
  copy_row(line + lo, channel + y * from.stride[4] + (x0 + lo) * from.stride[5], hi - lo,
           from.stride[5], Identity{});
  std::fill(line + hi, line + width, T(0));
}

// Tiles of 2 x 2 positions and how many rows of them are in a slab.
template <class T>
struct TileGrid {
  int64_t across, down, slab;

  // Slabs of at most `bytes`, of which a tile takes `tile_bytes`.
  TileGrid(const Correlation<T>& p, int64_t bytes, int64_t tile_bytes)
      : across(ceil_div(p.small.size[5], 2)),
        down(ceil_div(p.small.size[4], 2)),
        slab(std::clamp<int64_t>(bytes / (tile_bytes * across), 1, down)) {}

  int64_t slabs() const { return ceil_div(down, slab); }
  int64_t first(int64_t i) const { return i * slab; }
  int64_t count(int64_t i) const { return std::min(slab, down - i * slab); }
};

template <class T, int kTaps>
class TileWindows {
  static constexpr int kTile = 2;
  using Points = PointTransform<T, kTaps, kTile>;
  static constexpr int P = Points::points, kPlanes = P * P;

 public:
  TileWindows(const Correlation<T>& p, int64_t channels, const TileGrid<T>& tiles)
      : problem_(p),
        channels_(channels),
        tiles_(tiles),
        keys_(slots(channels, tiles), Key{-1, -1, -1, -1}),
        line_(line_length()),
        input_((kTile * tiles.slab + kTaps - 1) * line_length()),
        planes_(keys_.size() * channels * kPlanes * pitch()) {}

  // The slabs whose windows are held.
  static int64_t slots(int64_t channels, const TileGrid<T>& tiles) {
    const int64_t bytes = kPlanes * tiles.across * tiles.down * channels * sizeof(T);
    return bytes <= kHeldBytes ? tiles.slabs() : 1;
  }

  // Tiles of a slab in whole vectors, and a vector that is stored across its end.
  int64_t pitch() const { return round_up(tiles_.slab * tiles_.across, kWidth<T>) + kWidth<T>; }

  // The planes of channels [b, b + channels) on one slab.
  const T* planes(int64_t slab, int64_t n, int64_t v, int64_t b, int64_t channels) {
    const Key key{n, problem_.large.size[0] > 1 ? v : 0, b, slab};
    const int64_t slot = slab % keys_.size();
    T* to = planes_.data() + slot * channels_ * kPlanes * pitch();
    if (std::exchange(keys_[slot], key) != key)
      for (int64_t c = 0; c < channels; ++c)
        transform(to + c * pitch(), n, v, b + c, tiles_.first(slab), tiles_.count(slab));
    return to;
  }

 private:
  using Key = std::array<int64_t, 4>;  // sample, column, channel and slab
  static constexpr int64_t kHeldBytes = 192 << 10;

  // Columns of a line that windows reach, and zeros for the vectors that end beyond.
  int64_t line_length() const {
    return round_up(2 * tiles_.across + kTaps, 2 * kWidth<T>) + 2 * kWidth<T>;
  }

  // planes[point][.][tile] of one channel
  [[gnu::noinline]] void transform(T* planes, int64_t n, int64_t v, int64_t channel, int64_t first,
                                   int64_t count) {
    const Grid<const T>& x = problem_.large;
    const T* base =
        x.data + std::min(v, x.size[0] - 1) * x.stride[0] + n * x.stride[1] + channel * x.stride[2];
    const int64_t lines = kTile * count + kTaps - 1, half = line_length() / 2;
    for (int64_t y = 0; y < lines; ++y) {
      T* line = line_.data();
      copy_line(line, 2 * half, base, x, kTile * first - problem_.taps.padding[1] + y,
                -problem_.taps.padding[2]);
      T* split = input_.data() + 2 * y * half;
      for (int64_t q = 0; q < half; q += kWidth<T>) {
        const Reg<T> low = load(line + 2 * q), high = load(line + 2 * q + kWidth<T>);
        store(split + q, every_other<T, 0>(low, high));
        store(split + half + q, every_other<T, 1>(low, high));
      }
    }
    for (int64_t ty = 0; ty < count; ++ty)
      for (int64_t tx = 0; tx < tiles_.across; tx += kWidth<T>) {
        Reg<T> mixed[P][P];
        for (int dx = 0; dx < P; ++dx) {
          Reg<T> in[P], out[P];
          for (int dy = 0; dy < P; ++dy)
            in[dy] = load(input_.data() + (2 * (2 * ty + dy) + dx % 2) * half + tx + dx / 2);
          Points::windows(in, out);
          for (int py = 0; py < P; ++py) mixed[py][dx] = out[py];
        }
        T* to = planes + ty * tiles_.across + tx;
        for (int py = 0; py < P; ++py) {
          Reg<T> out[P];
          Points::windows(mixed[py], out);
          for (int px = 0; px < P; ++px) store(to + (py * P + px) * channels_ * pitch(), out[px]);
        }
      }
  }

  const Correlation<T>& problem_;
  int64_t channels_;
  TileGrid<T> tiles_;
  std::vector<Key> keys_;
  Scratch<T> line_, input_, planes_;
};
