// Per-sample weight gradients of 3 x 3 convolutions with fewer products.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// Two positions s and the four inputs x they meet give three taps by four products instead of six:
//   m = [s0 (x0 - x2), (s0 + s1) / 2 (x1 + x2), (s0 - s1) / 2 (x2 - x1), s1 (x3 - x1)]
//   g = [m0 + m1 + m2, m1 - m2, m1 + m2 + m3],
// in both dimensions 16 instead of 36. Sums over positions are taken on m, so the products are 16
// matrix products over tiles of 2 x 2 positions. The halves are exact in binary.
//
// Layouts, channels innermost: windows [16][panel][tile][kPanel], positions [16][tile][rows],
// products [16][row][channels], result [row][tap][channels], channels in whole vectors.

template <class T>
class TileTransform {
 public:
  static bool applies(const Correlation<T>& p) {
    const Taps& t = p.taps;
    for (int d = 0; d < 3; ++d)
      if (t.kernel[d] != (d == 0 ? 1 : 3) || t.stride[d] != 1 || t.dilation[d] != 1) return false;
    return p.may_transform && p.small.size[3] == 1 && t.padding[0] == 0 && p.large.size[3] == 1;
  }
  static int64_t channel_pitch(int64_t channels) { return round_up(channels, kWidth<T>); }
  static int64_t tiles_across(const Correlation<T>& p) { return ceil_div(p.small.size[5], 2); }
  static int64_t tiles_down(const Correlation<T>& p) { return ceil_div(p.small.size[4], 2); }
  static int64_t slab_rows(const Correlation<T>& p, int64_t channels) {
    const int64_t line = 16 * tiles_across(p) * round_up(channels, kPanel<T>) * sizeof(T);
    return std::clamp<int64_t>(kBytes / line, 1, tiles_down(p));
  }

  TileTransform(const Correlation<T>& p, int64_t rows, int64_t channels)
      : problem_(p),
        down_(tiles_down(p)),
        across_(tiles_across(p)),
        slab_(slab_rows(p, channels)),
        pitch_(channel_pitch(channels)),
        panels_(round_up(channels, kPanel<T>)),
        lanes_(round_up(rows, kWidth<T>)),
        input_((2 * slab_ + 2) * (2 * across_ + 2) * pitch_),
        output_(2 * slab_ * 2 * across_ * lanes_),
        windows_(16 * slab_ * across_ * panels_),
        positions_(16 * slab_ * across_ * lanes_),
        products_(16 * rows * pitch_) {}

  int64_t slabs() const { return ceil_div(down_, slab_); }

  // values [row][9][pitch] = G of rows [a, a + rows) and channels [b, b + channels).
  void make(int64_t n, int64_t v, int64_t a, int64_t rows, int64_t b, int64_t channels,
            bool same_windows, T* values) {
    for (int64_t slab = 0; slab < slabs(); ++slab) {
      const int64_t first = slab * slab_, count = std::min(slab_, down_ - first);
      if (!same_windows || slabs() > 1) transform_windows(n, v, b, channels, first, count);
      transform_positions(n, v, a, rows, first, count);
      const int64_t tiles = count * across_;
      for (int64_t xi = 0; xi < 16; ++xi)
        for (int64_t c = 0; c < pitch_; c += kPanel<T>)
          product_rows<T>(positions_.data() + xi * tiles * lanes_, 1, lanes_, rows,
                          windows_.data() + (xi * panels_ + c) * tiles, pitch_ - c, tiles,
                          products_.data() + xi * rows * pitch_ + c, pitch_, slab > 0);
    }
    for (int64_t r = 0; r < rows; ++r) recover(r, rows, values + r * 9 * pitch_);
  }

 private:
  static constexpr int64_t kBytes = 224 << 10;

  // Channels [c0, c0 + channels) of lines [y0, y0 + height) as [y][x][lane], zeros outside.
  [[gnu::noinline]] static void channels_last(T* to, int64_t lanes, const Grid<const T>& from,
                                              int64_t v, int64_t n, int64_t c0, int64_t channels,
                                              int64_t y0, int64_t height, int64_t x0,
                                              int64_t width) {
    const T* base = from.data + std::min(v, from.size[0] - 1) * from.stride[0] +
                    n * from.stride[1] + c0 * from.stride[2];
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
    // Lines that follow each other in both are one.
    int64_t count = hi - lo, lines = bottom - top;
    if (count == width && from.stride[4] == width * from.stride[5]) {
      count *= lines;
      lines = std::min<int64_t>(lines, 1);
    }
    // A few channels at a time, so that memory is read in long runs.
    constexpr int64_t kLines = 8;
    for (int64_t c = 0; c < channels; c += kLines)
      for (int64_t y = top; y < top + lines; ++y)
        interleave(
            to + (y * width + lo) * lanes + c, lanes,
            base + (y0 + y) * from.stride[4] + (x0 + lo) * from.stride[5] + c * from.stride[2],
            from.stride[5], from.stride[2], std::min(kLines, channels - c), count);
  }

  [[gnu::noinline]] void transform_windows(int64_t n, int64_t v, int64_t b, int64_t channels,
                                           int64_t first, int64_t count) {
    const int64_t width = 2 * across_ + 2, tiles = count * across_;
    channels_last(input_.data(), pitch_, problem_.large, v, n, b, channels,
                  2 * first - problem_.taps.padding[1], 2 * count + 2, -problem_.taps.padding[2],
                  width);
    for (int64_t ty = 0; ty < count; ++ty)
      for (int64_t tx = 0; tx < across_; ++tx) {
        const T* corner = input_.data() + (2 * ty * width + 2 * tx) * pitch_;
        const int64_t tile = ty * across_ + tx;
        for (int64_t c = 0; c < pitch_; c += kWidth<T>) {
          Reg<T> half[4][4];
          for (int x = 0; x < 4; ++x) {
            Reg<T> in[4];
            for (int y = 0; y < 4; ++y) in[y] = load(corner + (y * width + x) * pitch_ + c);
            half[0][x] = in[0] - in[2];
            half[1][x] = in[1] + in[2];
            half[2][x] = in[2] - in[1];
            half[3][x] = in[3] - in[1];
          }
          const int64_t panel = c / kPanel<T> * kPanel<T>;
          T* to = windows_.data() + panel * tiles + tile * kPanel<T> + c - panel;
          for (int y = 0; y < 4; ++y) {
            const Reg<T>* in = half[y];
            const Reg<T> all[4] = {in[0] - in[2], in[1] + in[2], in[2] - in[1], in[3] - in[1]};
            for (int x = 0; x < 4; ++x) store(to + (4 * y + x) * panels_ * tiles, all[x]);
          }
        }
      }
  }

  [[gnu::noinline]] void transform_positions(int64_t n, int64_t v, int64_t a, int64_t rows,
                                             int64_t first, int64_t count) {
    const int64_t width = 2 * across_, tiles = count * across_;
    channels_last(output_.data(), lanes_, problem_.small, v, n, a, rows, 2 * first, 2 * count, 0,
                  width);
    const T half = T(0.5);
    for (int64_t ty = 0; ty < count; ++ty)
      for (int64_t tx = 0; tx < across_; ++tx) {
        const T* corner = output_.data() + (2 * ty * width + 2 * tx) * lanes_;
        T* to = positions_.data() + (ty * across_ + tx) * lanes_;
        for (int64_t c = 0; c < rows; c += kWidth<T>) {
          Reg<T> mixed[4][2];
          for (int x = 0; x < 2; ++x) {
            const Reg<T> s0 = load(corner + x * lanes_ + c);
            const Reg<T> s1 = load(corner + (width + x) * lanes_ + c);
            mixed[0][x] = s0;
            mixed[1][x] = (s0 + s1) * half;
            mixed[2][x] = (s0 - s1) * half;
            mixed[3][x] = s1;
          }
          for (int y = 0; y < 4; ++y) {
            const Reg<T> s0 = mixed[y][0], s1 = mixed[y][1];
            const Reg<T> all[4] = {s0, (s0 + s1) * half, (s0 - s1) * half, s1};
            for (int x = 0; x < 4; ++x) store(to + (4 * y + x) * tiles * lanes_ + c, all[x]);
          }
        }
      }
  }

  // The nine taps of one row from its sixteen products.
  [[gnu::noinline]] void recover(int64_t row, int64_t rows, T* values) {
    const T* products = products_.data() + row * pitch_;
    for (int64_t c = 0; c < pitch_; c += kWidth<T>) {
      Reg<T> half[3][4];
      for (int x = 0; x < 4; ++x) {
        Reg<T> m[4];
        for (int y = 0; y < 4; ++y) m[y] = load(products + (4 * y + x) * rows * pitch_ + c);
        const Reg<T> both = m[1] + m[2];
        half[0][x] = m[0] + both;
        half[1][x] = m[1] - m[2];
        half[2][x] = both + m[3];
      }
      for (int y = 0; y < 3; ++y) {
        const Reg<T>* m = half[y];
        const Reg<T> both = m[1] + m[2];
        const Reg<T> taps[3] = {m[0] + both, m[1] - m[2], both + m[3]};
        for (int x = 0; x < 3; ++x) store(values + (3 * y + x) * pitch_ + c, taps[x]);
      }
    }
  }

  const Correlation<T>& problem_;
  int64_t down_, across_, slab_, pitch_, panels_, lanes_;
  Scratch<T> input_, output_, windows_, positions_, products_;
};
