// What winograd/one_axis_positions.h and winograd/one_axis_channels.h share: tiles of four lines,
// whose points lie along the vertical axis.

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

// Where the rows lie that come after the group at r of rows [a, a + rows), other rows or those of
// the next column or sample, if they are dense: to be asked for in so many steps.
template <int64_t kGroup, class T>
Ahead<T> next_rows(const Correlation<T>& p, int64_t n, int64_t v, int64_t a, int64_t r,
                   int64_t rows, int64_t steps) {
  const Grid<const T>& s = p.small;
  if (s.stride[5] != 1 || s.stride[4] != s.size[5] || s.stride[2] != s.size[4] * s.size[5])
    return {s.data, s.data, 0};
  const bool end = r + kGroup >= rows;
  const int64_t unit = n * p.columns + v + end, row = end ? 0 : r + kGroup;
  const T* first = s.channel(unit % p.columns, std::min(unit / p.columns, p.samples - 1), a + row);
  const int64_t span = std::min(kGroup, rows - row) * s.stride[2];
  return {first, first + span, std::clamp<int64_t>(ceil_div(span, steps), 1, 64 / sizeof(T))};
}

// Which windows are held: sample, column of the Jacobian, channel and tile.
using WindowKey = std::array<int64_t, 4>;

// The tiles of blocks of `channels` at most: a slab of them at a time, whose windows take some
// bytes, and pieces of those, whose positions do.
template <class T, int kTaps>
struct LineShape {
  static constexpr int kTile = 4;
  using Points = PointTransform<T, kTaps, kTile>;
  static constexpr int P = Points::points;

  int64_t channels;
  int64_t positions;  // of a line
  int64_t down;       // tiles
  int64_t slab;       // of them

  LineShape(const Correlation<T>& p, int64_t channels_, int64_t tile_entries)
      : channels(channels_),
        positions(p.small.size[5]),
        down(ceil_div(p.small.size[4], kTile)),
        slab(std::clamp<int64_t>(kBytes / (P * tile_entries * sizeof(T)), 1, down)) {}

  int64_t width() const { return positions + kTaps - 1; }  // of a line of windows

  // Some tiles one below the other, and some of their positions: whole lines, if several tiles.
  struct Piece {
    int64_t tile, tiles, x, width;
  };

  // f(piece) for tiles [first, last) of `line` positions, in pieces of `most` of them or fewer, a
  // multiple of `unit`.
  template <class F>
  static void each_piece(int64_t first, int64_t last, int64_t line, int64_t most, int64_t unit,
                         F f) {
    const int64_t tiles = std::max<int64_t>(1, most / round_up(line, unit));
    const int64_t width = round_up(ceil_div(line, ceil_div(line, most)), unit);
    for (int64_t tile = first; tile < last; tile += tiles)
      for (int64_t x = 0; x < line; x += width)
        f(Piece{tile, std::min(tiles, last - tile), x, std::min(width, line - x)});
  }

 private:
  static constexpr int64_t kBytes = 256 << 10;
};
