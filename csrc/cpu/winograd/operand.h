// One operand of a weight gradient, transformed in both dimensions.
//
// Planes [pack][plane][tile][lane], channels by packs so that a product reads both operands in
// order, for a block of rows of tiles. Planes of a few row blocks may be held at a time, each until
// another is wanted in its slot.

// Channels [c0, c0 + channels) of lines [y0, y0 + height) as [y][x][lane], zeros outside.
template <class T>
[[gnu::noinline]] void channels_last(T* to, int64_t lanes, const Grid<const T>& from, int64_t v,
                                     int64_t n, int64_t c0, int64_t channels, int64_t y0,
                                     int64_t height, int64_t x0, int64_t width) {
  const T* base = from.channel(v, n, c0);
  const int64_t lo = std::clamp<int64_t>(-x0, 0, width);
  const int64_t hi = std::clamp<int64_t>(from.size[5] - x0, lo, width);
  const int64_t top = std::clamp<int64_t>(-y0, 0, height);
  const int64_t bottom = std::clamp<int64_t>(from.size[4] - y0, top, height);
  std::fill(to, to + top * width * lanes, T(0));
  std::fill(to + bottom * width * lanes, to + height * width * lanes, T(0));
  for (int64_t y = top; y < bottom; ++y) {
    T* line = to + y * width * lanes;
    std::fill(line, line + lo * lanes, T(0));
    std::fill(line + hi * lanes, line + width * lanes, T(0));
  }
  if (channels % kWidth<T> != 0)
    for (int64_t q = top * width; q < bottom * width; ++q)
      std::fill(to + q * lanes + channels, to + q * lanes + round_up(channels, kWidth<T>), T(0));
  // Lines that follow each other in both are one.
  int64_t count = hi - lo, lines = bottom - top;
  if (count == width && from.stride[4] == width * from.stride[5]) {
    count *= lines;
    lines = std::min<int64_t>(lines, 1);
  }
  // Of long lines a few channels at a time, so that memory is read in long runs.
  const int64_t step = count >= 64 ? 8 : 16;
  for (int64_t c = 0; c < channels; c += step)
    interleave(to + (top * width + lo) * lanes + c, lanes,
               base + (y0 + top) * from.stride[4] + (x0 + lo) * from.stride[5] + c * from.stride[2],
               from.stride[5], from.stride[2], std::min(step, channels - c), count,
               {lines, width * lanes, from.stride[4]});
}

// The windows of a correlation (kWindows, of `large`) or its positions (of `small`).
template <class T, int m, int r, bool kWindows>
class WinogradOperand {
  using F = Transforms<T, m, r>;

 public:
  // `channels` at most, in packs of so many, half a vector or whole ones (0: all in one);
  // `row_block` rows of `across` tiles, `slots` of them held.
  WinogradOperand(const Correlation<T>& p, int64_t channels, int64_t pack, int64_t across,
                  int64_t down, int64_t row_block, int64_t slots)
      : grid_(kWindows ? p.large : p.small),
        padding_{kWindows ? p.taps.padding[1] : 0, kWindows ? p.taps.padding[2] : 0},
        pack_(pack),
        across_(across),
        down_(down),
        row_block_(row_block),
        size_(pack ? ceil_div(round_up(channels, kWidth<T>), pack) * pack_size(pack)
                   : pack_size(round_up(channels, kWidth<T>))),
        keys_(slots, Key{-1, -1, -1, -1}),
        input_((r * row_block + kHalo) * width() * round_up(channels, kWidth<T>)),
        planes_(slots * size_) {}

  // Entries of a pack of so many channels, and of a plane of it: not a multiple of 256 bytes, or
  // the planes of a tile would meet in few sets of the first-level cache.
  int64_t pack_size(int64_t pack) const { return kPlanes * plane_size(pack); }
  int64_t plane_size(int64_t pack) const {
    const int64_t size = row_block_ * across_ * pack, line = 64 / sizeof(T);
    return size % (4 * line) == 0 ? size + line : size;
  }

  // The planes of channels [c0, c0 + channels) on one row_block.
  const T* planes(int64_t slot, int64_t n, int64_t v, int64_t c0, int64_t channels,
                  int64_t row_block) {
    slot %= keys_.size();
    T* to = planes_.data() + slot * size_;
    const Key key{n, grid_.size[0] > 1 ? v : 0, c0, row_block};
    if (std::exchange(keys_[slot], key) != key)
      transform(to, n, v, c0, channels, row_block * row_block_,
                std::min(row_block_, down_ - row_block * row_block_));
    return to;
  }

 private:
  using Key = std::array<int64_t, 4>;  // sample, column, channel, row_block
  static constexpr int P = F::nodes, kPlanes = P * P;
  static constexpr int kHalo = kWindows ? m - 1 : 0, kSpan = r + kHalo;

  int64_t width() const { return r * across_ + kHalo; }

  static void along(const Reg<T>* in, Reg<T>* out) {
    if constexpr (kWindows)
      F::windows(in, out);
    else
      F::positions(in, out);
  }

  [[gnu::noinline]] void transform(T* to, int64_t n, int64_t v, int64_t c0, int64_t channels,
                                   int64_t first, int64_t count) {
    const int64_t lanes = round_up(channels, kWidth<T>), row = width() * lanes;
    const int64_t pack = pack_ ? pack_ : lanes, plane = plane_size(pack);
    channels_last(input_.data(), lanes, grid_, v, n, c0, channels, r * first - padding_[0],
                  r * count + kHalo, -padding_[1], width());
    for (int64_t ty = 0; ty < count; ++ty)
      for (int64_t tx = 0; tx < across_; ++tx) {
        const T* corner = input_.data() + r * (ty * row + tx * lanes);
        T* tile = to + (ty * across_ + tx) * pack;
        for (int64_t c = 0; c < lanes; c += kWidth<T>) {
          Reg<T> half[P][kSpan];
          for (int x = 0; x < kSpan; ++x) {
            Reg<T> in[kSpan], out[P];
            for (int y = 0; y < kSpan; ++y) in[y] = load(corner + y * row + x * lanes + c);
            along(in, out);
            for (int y = 0; y < P; ++y) half[y][x] = out[y];
          }
          T* lane = tile + c / pack * kPlanes * plane + c % pack;
          for (int y = 0; y < P; ++y) {
            Reg<T> out[P];
            along(half[y], out);
            for (int x = 0; x < P; ++x) {
              T* at = lane + (y * P + x) * plane;
              if (pack < kWidth<T>)
                store_halves(at, at + kPlanes * plane, out[x]);
              else
                store(at, out[x]);
            }
          }
        }
      }
  }

  const Grid<const T>& grid_;
  int64_t padding_[2];
  int64_t pack_, across_, down_, row_block_, size_;
  std::vector<Key> keys_;
  Scratch<T> input_, planes_;
};
