// Per-sample weight gradients G[a, j] = sum_t small[a, t] * large[window j, t], a block at a time.
//
// A block is some rows a and some channels b (columns j = (b, k)) of one group; it lives in a
// buffer that fits the cache, for one sample and column, and is never larger. This folder has the
// strategies that make blocks (direct.h; winograd/ has one more), the choice among them (choose.h)
// and the sums over samples and columns (reduce.h); the ops say what becomes of a block.

template <class T>
struct Correlation {
  Grid<const T> small, large;
  Taps taps;
  int64_t columns, samples;  // V and N
  int64_t rows, channels;    // A and B, of one group
  int64_t kernel;            // taps in all
  int64_t positions;
  bool may_transform;  // Winograd may be used: its rounding is that of signed sums
  double reuse;        // columns that share their windows
  Axes axes;

  Correlation(const Grid<const T>& small_, const Grid<const T>& large_, const Taps& taps_,
              bool may_transform_ = true)
      : small(small_),
        large(large_),
        taps(taps_),
        columns(std::max(small_.size[0], large_.size[0])),
        samples(small_.size[1]),
        rows(small_.size[2] / taps_.groups),
        channels(large_.size[2] / taps_.groups),
        kernel(taps_.kernel[0] * taps_.kernel[1] * taps_.kernel[2]),
        positions(small_.size[3] * small_.size[4] * small_.size[5]),
        may_transform(may_transform_),
        reuse(large_.size[0] > 1 ? 1 : columns),
        axes(gather_axis(taps, 0, small.size[3], large.size[3]),
             gather_axis(taps, 1, small.size[4], large.size[4]),
             gather_axis(taps, 2, small.size[5], large.size[5])) {}
};

// A rectangle of the weight within one group.
struct Block {
  int64_t group, a0, a1, b0, b1;
  int64_t rows() const { return a1 - a0; }
  int64_t channels() const { return b1 - b0; }
};

// Samples [first, last).
struct Samples {
  int64_t first, last;
  int64_t count() const { return last - first; }
};

// Cuts every group into rectangles of at most `rows` x `channels`.
inline std::vector<Block> cut(int64_t groups, int64_t a, int64_t b, int64_t rows,
                              int64_t channels) {
  std::vector<Block> blocks;
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t a0 = 0; a0 < a; a0 += rows)
      for (int64_t b0 = 0; b0 < b; b0 += channels)
        blocks.push_back({g, a0, std::min(a0 + rows, a), b0, std::min(b0 + channels, b)});
  return blocks;
}

// How a block's values are laid out: entry (a, b, k) is at a * row + b * channel + k * tap. One of
// the three is 1: [b][k][a], [a][k][b] or [a][b][k].
struct Layout {
  int64_t row, channel, tap;

  // Values of a block with what lies between them, which is zero.
  int64_t size(int64_t rows, int64_t channels) const {
    return std::max(rows * row, channels * channel);
  }
};
