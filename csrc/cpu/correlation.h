// Per-sample weight gradients G[a, j] = sum_t small[a, t] * large[window j, t], a block at a time.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// A block is some rows a and some channels b (columns j = (b, k)) of one group; it lives in a
// buffer that fits the cache, for one sample and column, and is never larger. Two ways to make it:
//   shifted rows (dot_block): both operands are copied once into padded arrays in which every tap
//     is an offset, and vectors run along the positions; no unfolding at all;
//   panels (product_rows): windows are packed position by position, kPanel columns wide, and
//     vectors run along the columns. Better when positions are few.

struct Identity {
  template <class T> T operator()(T x) const { return x; }
};
struct Square {
  template <class T> T operator()(T x) const { return x * x; }
};

template <class T> struct Correlation {
  Grid<const T> small, large;
  Taps taps;
  int64_t columns, samples;       // V and N
  int64_t rows, channels;         // A and B, of one group
  int64_t kernel;                 // taps in all
  int64_t positions;

  Correlation(const Grid<const T>& small_, const Grid<const T>& large_, const Taps& taps_)
      : small(small_), large(large_), taps(taps_),
        columns(std::max(small_.size[0], large_.size[0])), samples(small_.size[1]),
        rows(small_.size[2] / taps_.groups), channels(large_.size[2] / taps_.groups),
        kernel(taps_.kernel[0] * taps_.kernel[1] * taps_.kernel[2]),
        positions(small_.size[3] * small_.size[4] * small_.size[5]) {}

  std::array<Axis, 3> axes() const {
    return {gather_axis(taps, 0, small.size[3], large.size[3]),
            gather_axis(taps, 1, small.size[4], large.size[4]),
            gather_axis(taps, 2, small.size[5], large.size[5])};
  }
};

// A rectangle of the weight within one group.
struct Block {
  int64_t group, a0, a1, b0, b1;
  int64_t rows() const { return a1 - a0; }
  int64_t channels() const { return b1 - b0; }
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

// Makes blocks of G, one (sample, column) after another. One object serves one thread.
template <class T> class BlockMaker {
 public:
  BlockMaker(const Correlation<T>& problem, int64_t max_rows, int64_t max_channels)
      : problem_(problem),
        planes_(Planes::make<T>(problem.axes(), max_channels, kPlaneBytes)),
        use_panels_(panels_are_better(problem, planes_, max_rows, max_channels)),
        pitch_(round_up(max_channels * problem.kernel, kPanel<T>)),
        offsets_(),
        arrays_(max_channels * planes_.phases * planes_.plane + planes_.flat),
        rows_(max_rows * (use_panels_ ? problem.positions : planes_.flat)),
        panels_(use_panels_ ? pitch_ * problem.positions : 0),
        values_(max_rows * pitch_) {
    const auto taps = planes_.tap_offsets(problem.taps.kernel);
    offsets_.resize(max_channels * problem.kernel);
    for (int64_t b = 0; b < max_channels; ++b)
      for (const auto& [offset, index] : taps)
        offsets_[b * problem.kernel + index] = b * planes_.phases * planes_.plane + offset;
  }

  // Row pitch of the block: columns j < channels * kernel are its values, the rest is slack.
  int64_t pitch() const { return pitch_; }
  T* values() { return values_.data(); }

  // values = G of the block, or values += G.
  template <class F, class H>
  void make(const Block& block, int64_t n, int64_t v, bool accumulate, F of_small, H of_large) {
    const int64_t a = block.group * problem_.rows + block.a0;
    const int64_t b = block.group * problem_.channels + block.b0;
    const int64_t width = block.channels() * problem_.kernel;
    for (int64_t slab = 0; slab < planes_.slabs(); ++slab) {
      const Key key{b, b + block.channels(), n, problem_.large.size[0] > 1 ? v : 0, slab};
      const bool fresh = key != key_;
      if (fresh)
        fill_planes<T>(arrays_.data(), planes_, slab, problem_.large, v, n, b,
                       b + block.channels(), of_large);
      if (use_panels_) {
        if (fresh) pack(width);
        multiply(block, a, n, v, width, accumulate, of_small);
      } else {
        fill_positions<T>(rows_.data(), planes_.flat, planes_, slab, problem_.small, v, n, a,
                          a + block.rows(), of_small);
        dot_block<T>(rows_.data(), planes_.flat, block.rows(), arrays_.data(), offsets_.data(),
                     width, planes_.extent<T>(slab), values_.data(), pitch_,
                     accumulate || slab > 0);
      }
      key_ = key;
    }
  }

 private:
  // What the arrays hold: channels, sample, column and slab.
  using Key = std::array<int64_t, 5>;
  static constexpr int64_t kPlaneBytes = 128 << 10;
  static constexpr int64_t kPanelBytes = 256 << 10;

  // Instructions of either way on one sample: products, plus lane sums and packing.
  static bool panels_are_better(const Correlation<T>& p, const Planes& planes, int64_t rows,
                                int64_t channels) {
    const double width = channels * p.kernel, panel_width = round_up(width, kPanel<T>);
    if (planes.slabs() != 1 || panel_width * p.positions * sizeof(T) > kPanelBytes) return false;
    const double vectors = planes.extent<T>(0) / kWidth<T>;
    const double reuse = p.large.size[0] > 1 ? 1 : p.columns;
    const double dots = rows * width * (vectors + 4);
    const double products = round_up(rows, 2) * panel_width / kWidth<T> * (p.positions + 4) +
                            1.5 * panel_width * p.positions / reuse;
    return products < dots;
  }

  // panels[panel][t][j] = window value of column j at position t.
  void pack(int64_t width) {
    const int64_t nz = planes_.count(0, 0), ny = planes_.count(1, 0), nx = planes_.count(2, 0);
    const T* arrays = arrays_.data();
    for (int64_t first = 0; first < width; first += kPanel<T>) {
      const int64_t wide = std::min<int64_t>(kPanel<T>, width - first);
      T* out = panels_.data() + first * problem_.positions;
      const int64_t* offsets = offsets_.data() + first;
      for (int64_t z = 0; z < nz; ++z)
        for (int64_t y = 0; y < ny; ++y)
          for (int64_t x = 0; x < nx; ++x, out += kPanel<T>) {
            const T* from = arrays + planes_.row(z, y) + x;
            for (int64_t j = 0; j < wide; ++j) out[j] = from[offsets[j]];
          }
    }
  }

  template <class F>
  void multiply(const Block& block, int64_t a, int64_t n, int64_t v, int64_t width,
                bool accumulate, F of_small) {
    const Grid<const T>& s = problem_.small;
    const T* base = s.data + std::min(v, s.size[0] - 1) * s.stride[0] + n * s.stride[1] +
                    a * s.stride[2];
    int64_t row_stride = s.stride[2], step = s.stride[5];
    const bool even = (s.size[4] == 1 || s.stride[4] == s.stride[5] * s.size[5]) &&
                      (s.size[3] == 1 || s.stride[3] == s.stride[5] * s.size[5] * s.size[4]);
    if (!even || !std::is_same_v<F, Identity>) {
      T* out = rows_.data();
      for (int64_t r = 0; r < block.rows(); ++r)
        for (int64_t z = 0; z < s.size[3]; ++z)
          for (int64_t y = 0; y < s.size[4]; ++y, out += s.size[5])
            copy_row(out, base + r * s.stride[2] + z * s.stride[3] + y * s.stride[4], s.size[5],
                     s.stride[5], of_small);
      base = rows_.data();
      row_stride = problem_.positions;
      step = 1;
    }
    for (int64_t first = 0; first < width; first += kPanel<T>)
      product_rows<T>(base, row_stride, step, block.rows(),
                      panels_.data() + first * problem_.positions, problem_.positions,
                      values_.data() + first, pitch_, accumulate);
  }

  const Correlation<T>& problem_;
  Planes planes_;
  bool use_panels_;
  int64_t pitch_;
  std::vector<int64_t> offsets_;
  Scratch<T> arrays_, rows_, panels_, values_;
  Key key_{-1, -1, -1, -1, -1};
};
