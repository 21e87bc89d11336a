// Blocks of G from images in which every tap is an offset (pack/padded.h): nothing is unfolded.
// RowsOf has the rows that meet them: RowsInLanes or PositionsInLanes.

template <class T, template <class> class RowsOf>
class Direct {
  using Rows = RowsOf<T>;

 public:
  static constexpr bool kDirect = true;
  static bool applies(const Correlation<T>&) { return true; }
  static Layout layout(const Correlation<T>& p, int64_t rows, int64_t channels) {
    return Rows::layout(p, rows, channels);
  }

  // Instructions for a block of one sample and column.
  static double cost(const Correlation<T>& p, int64_t rows, int64_t channels) {
    const Planes planes = Rows::planes(p, channels);
    const double filled =
        tuning::kCopied * channels * planes.phases * planes.row_blocks() * planes.flat;
    return Rows::cost(p, planes, rows, channels) + filled / (planes.row_blocks() > 1 ? 1 : p.reuse);
  }

  Direct(const Correlation<T>& p, int64_t rows, int64_t channels)
      : problem_(p),
        layout_(layout(p, rows, channels)),
        planes_(Rows::planes(p, channels)),
        together_(Rows::together(p, planes_)),
        images_(together_ * channels * planes_.phases * planes_.plane + planes_.flat),
        rows_(p, planes_, rows, channels),
        size_(layout_.size(rows, channels)),
        values_(size_) {}

  // sink(at, pitch, g): the values of the block, an array of a few vectors at a time, of which the
  // i-th is at entry at + i * pitch of the layout.
  template <class Sink>
  void visit(const Block& block, int64_t n, int64_t v, Sink& sink) {
    const T* values = values_.data();
    // A smaller block would leave values of another sample between its own.
    if (const std::pair shape{block.rows(), block.channels()};
        std::exchange(shape_, shape) != shape)
      std::fill(values_.data(), values_.data() + size_, T(0));
    make(values_.data(), problem_.small, problem_.large, block, {n, n + 1}, v, false, Identity{},
         Identity{});
    const int64_t size = layout_.size(block.rows(), block.channels());
    int64_t at = 0;
    auto pass = [&]<int C>() {
      Reg<T> g[C];
      for (int i = 0; i < C; ++i) g[i] = load(values + at + i * kWidth<T>);
      sink(at, kWidth<T>, g);
      at += C * kWidth<T>;
    };
    while (at + 4 * kWidth<T> <= size) pass.template operator()<4>();
    while (at < size) pass.template operator()<1>();
  }

  // values (+)= G of the block from grids like the problem's, summed over the samples, with a
  // function applied to either operand. What lies between rows is not always written: it must be
  // zero when it is new.
  template <class F, class H>
  void make(T* values, const Grid<const T>& small, const Grid<const T>& large, const Block& block,
            const Samples& all, int64_t v, bool accumulate, F of_small, H of_large) {
    const int64_t a = block.group * problem_.rows + block.a0;
    const int64_t b = block.group * problem_.channels + block.b0;
    const int64_t step = block.channels() * planes_.phases * planes_.plane;
    for (Samples some{all.first, 0}; some.first < all.last; some.first = some.last) {
      some.last = std::min(all.last, some.first + together_);
      for (int64_t row_block = 0; row_block < planes_.row_blocks();
           ++row_block, accumulate = true) {
        const Key key{large.channel(v, some.first, b), block.channels(), some.count(), row_block,
                      std::is_same_v<H, Square>};
        if (std::exchange(key_, key) != key)
          for (int64_t n = some.first; n < some.last; ++n)
            fill_planes<T>(images_.data() + (n - some.first) * step, planes_, row_block, large, v,
                           n, b, b + block.channels(), of_large, planes_.row_blocks() == 1);
        rows_.take(small, v, some, a, block.rows(), row_block, of_small);
        rows_.multiply(images_.data(), step, some.count(), block.rows(), block.channels(),
                       row_block, values, accumulate);
      }
    }
  }

 private:
  // What the images were made from.
  struct Key {
    const T* from = nullptr;
    int64_t channels = 0, samples = 0, row_block = 0;
    bool squared = false;
    bool operator==(const Key&) const = default;
  };

  const Correlation<T>& problem_;
  Layout layout_;
  Planes planes_;
  int64_t together_;
  Scratch<T> images_;
  Rows rows_;
  int64_t size_;
  Scratch<T> values_;
  std::pair<int64_t, int64_t> shape_{0, 0};
  Key key_;
};
