// Per-sample weight gradients by Winograd's F(m, r) in both dimensions.
//
// Sums over positions are taken on the products, so they are (m + r - 1)^2 matrix products, one a
// plane, over tiles of r x r positions: for 3 x 3 taps a tile of 2 x 2 takes 16 products instead of
// 36, one of 4 x 4 36 instead of 144; for 5 x 5 taps one of 2 x 2 takes 36 instead of 100.
//
// Vectors run along the block's rows or along its channels, whichever fills them better (the inner
// side), a panel of them at a time; the other side is broadcast, a pack of it at a time. Products
// [other][plane][kPanel] of a pack stay in the first-level cache, and their taps are handed on
// while they are in registers.

template <class T, int m, int r>
class Winograd {
  using F = Transforms<T, m, r>;
  static constexpr int P = F::nodes, kPlanes = P * P;

 public:
  static constexpr bool kDirect = false;
  static bool applies(const Correlation<T>& p) {
    const Taps& t = p.taps;
    for (int d = 0; d < 3; ++d)
      if (t.kernel[d] != (d == 0 ? 1 : m) || t.stride[d] != 1 || t.dilation[d] != 1) return false;
    return p.may_transform && p.small.size[3] == 1 && t.padding[0] == 0 && p.large.size[3] == 1;
  }

  // Others that a panel meets at a time: sums enough to hide their latency, few enough to go on
  // with the next plane while they are stored.
  static constexpr int kOthers = 4;

  // The side of fewer vectors in all; of equal ones that which comes in whole panels, or in more
  // than one vector.
  static bool rows_inside(int64_t rows, int64_t channels) {
    const int64_t row_vectors = ceil_div(rows, kWidth<T>);
    const int64_t channel_vectors = ceil_div(channels, kWidth<T>);
    if (row_vectors * channels != channel_vectors * rows)
      return row_vectors * channels < channel_vectors * rows;
    if (row_vectors % kColumns == 0 || channel_vectors % kColumns == 0)
      return row_vectors % kColumns == 0;
    return row_vectors > 1 || channel_vectors == 1;
  }

  // Entries from tap to tap.
  static int64_t pitch(int64_t rows, int64_t channels) {
    return round_up(rows_inside(rows, channels) ? rows : channels, kWidth<T>);
  }

  // [other][tap][inner]
  static Layout layout(const Correlation<T>&, int64_t rows, int64_t channels) {
    const int64_t tap = pitch(rows, channels), other = m * m * tap;
    return rows_inside(rows, channels) ? Layout{1, other, tap} : Layout{other, 1, tap};
  }

  // Instructions for a block of one sample and column.
  static double cost(const Correlation<T>& p, int64_t rows, int64_t channels) {
    const bool inside = rows_inside(rows, channels);
    const double tiles = tiles_down(p) * tiles_across(p);
    const double row_vectors = ceil_div(rows, kWidth<T>);
    const double channel_vectors = ceil_div(channels, kWidth<T>);
    const double pairs = inside ? row_vectors * channels : channel_vectors * rows;
    const double recovery = kPlanes + 2 * (P + m) * m + 3 * m * m;
    const double row_blocks = ceil_div(tiles_down(p), rows_held(p, inside ? channels : rows));
    const double stored = row_blocks > 1 ? tuning::kStored * row_blocks : 2;
    const bool lone = (inside ? row_vectors : channel_vectors) == 1;
    const double narrow =
        (lone ? tuning::kLoneVector : 1) * ((inside ? channels : rows) % kOthers == 0 ? 1 : 1.2);
    const double transposed = 1.5 * r * r * kWidth<T>;
    return pairs * (narrow * kPlanes * (tiles + stored) + recovery) +
           tuning::kTileCost * tiles *
               (row_vectors * (4 * kPlanes + transposed) +
                channel_vectors * (7 * kPlanes + transposed) / p.reuse);
  }

  Winograd(const Correlation<T>& p, int64_t rows, int64_t channels)
      : problem_(p),
        inside_(rows_inside(rows, channels)),
        inner_(pitch(rows, channels)),
        others_(inside_ ? channels : rows),
        across_(tiles_across(p)),
        down_(tiles_down(p)),
        held_(rows_held(p, others_)),
        windows_(p, inside_ ? channels : kPanel<T>, inside_ ? kPack : 0, across_, down_, held_,
                 slots(inside_ ? channels : inner_)),
        positions_(p, inside_ ? kPanel<T> : rows, inside_ ? 0 : kPack, across_, down_, held_, 1),
        products_(kPlanes * kPanel<T> * (row_blocks() > 1 ? panels(inner_) * others_ : step())) {}

  // sink(at, pitch, g): vectors of the block at entries at, at + pitch, ... of the layout.
  template <class Sink>
  void visit(const Block& block, int64_t n, int64_t v, Sink& sink) {
    const int64_t a = block.group * problem_.rows + block.a0, rows = block.rows();
    const int64_t b = block.group * problem_.channels + block.b0, channels = block.channels();
    const int64_t inner = inside_ ? rows : channels, others = inside_ ? channels : rows;
    const int64_t count = panels(inner), blocks = row_blocks();
    for (int64_t row_block = 0; row_block < blocks; ++row_block)
      for (int64_t panel = 0; panel < count; ++panel) {
        // Panels of nearly as many vectors.
        const int64_t vectors = ceil_div(inner, kWidth<T>);
        const int64_t first = vectors * panel / count * kWidth<T>;
        const int64_t last = std::min(inner, vectors * (panel + 1) / count * kWidth<T>);
        const int64_t slot = row_block * (inside_ ? 1 : count) + (inside_ ? 0 : panel);
        const T* x = inside_ ? windows_.planes(slot, n, v, b, channels, row_block)
                             : windows_.planes(slot, n, v, b + first, last - first, row_block);
        const T* s = inside_ ? positions_.planes(0, n, v, a + first, last - first, row_block)
                             : positions_.planes(0, n, v, a, rows, row_block);
        for (int64_t other = 0, step = this->step(); other < others; other += step) {
          const int64_t some = std::min(step, others - other);
          T* products = products_.data();
          if (blocks > 1) products += (panel * others_ + other) * kPlanes * kPanel<T>;
          const T* outer = (inside_ ? x : s) + other / kPack * kPlanes * plane(kPack);
          multiply(outer + other % kPack, inside_ ? s : x, some, last - first, row_block, products);
          if (row_block + 1 == blocks)
            recover(products, some, last - first, other * m * m * inner_ + first, sink);
        }
      }
  }

 private:
  static constexpr int64_t kPack = tuning::kWinogradPack;

  static int64_t tiles_across(const Correlation<T>& p) { return ceil_div(p.small.size[5], r); }
  static int64_t tiles_down(const Correlation<T>& p) { return ceil_div(p.small.size[4], r); }
  int64_t plane(int64_t lanes) const { return windows_.plane_size(lanes); }
  // Rows of tiles that are held at a time.
  static int64_t rows_held(const Correlation<T>& p, int64_t others) {
    const int64_t row = kPlanes * tiles_across(p) * (kPanel<T> + others) * sizeof(T);
    return std::clamp<int64_t>(tuning::kTileBytes / row, 1, tiles_down(p));
  }

  static int64_t panels(int64_t inner) { return ceil_div(inner, kPanel<T>); }
  int64_t row_blocks() const { return ceil_div(down_, held_); }
  // Others that a panel meets at a time.
  int64_t step() const { return inner_ > kWidth<T> ? kOthers : kPack; }

  // Columns of a sample share its windows: all are held if they are few.
  int64_t slots(int64_t channels) const {
    const int64_t bytes = kPlanes * across_ * down_ * channels * sizeof(T);
    return bytes <= tuning::kHeldBytes ? row_blocks() * (inside_ ? 1 : panels(inner_)) : 1;
  }

  // products[other][plane][inner] (+)= sum over the row block's tiles, for some others of a pack
  void multiply(const T* outer, const T* inner, int64_t others, int64_t lanes, int64_t row_block,
                T* products) const {
    const int64_t tiles = std::min(held_, down_ - row_block * held_) * across_;
    const auto run = lanes > 2 * kWidth<T> ? &Winograd::multiply_others<kOthers, 3>
                     : lanes > kWidth<T>   ? &Winograd::multiply_others<kOthers, 2>
                                           : &Winograd::multiply_others<kPack, 1>;
    (this->*run)(outer, inner, others, tiles, products, row_block > 0);
  }

  // Tiles of at most R others and C vectors.
  template <int R, int C>
  void multiply_others(const T* outer, const T* inner, int64_t others, int64_t tiles, T* products,
                       bool accumulate) const {
    each_tile<R>(others, [&]<int S>(int64_t first) {
      multiply_planes<S, C>(outer + first, plane(kPack), inner, plane(C * kWidth<T>), tiles,
                            products + first * kPlanes * kPanel<T>, accumulate);
    });
  }

  template <int R, int C>
  [[gnu::noinline]] static void multiply_planes(const T* outer, int64_t outer_plane, const T* inner,
                                                int64_t inner_plane, int64_t tiles, T* products,
                                                bool accumulate) {
    for (int plane = 0; plane < kPlanes; ++plane) {
      outer_tile<T, R, C>(Strided<T>{outer, 1, kPack, inner, C * kWidth<T>, tiles},
                          Store<T>{products, kPlanes * kPanel<T>, accumulate});
      outer += outer_plane;
      inner += inner_plane;
      products += kPanel<T>;
    }
  }

  // The taps of some others and of lanes, to entries [other][tap][lane].
  template <class Sink>
  [[gnu::noinline]] void recover(const T* products, int64_t others, int64_t lanes, int64_t at,
                                 Sink& sink) const {
    // A copy's members stay in registers; those of `sink` would be read again after every store.
    Sink own = sink;
    for (int64_t i = 0; i < others; ++i, products += kPlanes * kPanel<T>, at += m * m * inner_)
      for (int64_t c = 0; c < lanes; c += kWidth<T>) {
        const T* from = products + c;
        // Hides that a plane's next lanes are another plane's: GCC would keep them all for later.
        asm("" : "+r"(from));
        recover_taps(from, at + c, own);
      }
    sink = own;
  }

  // The taps of a vector of products: sink of m of them at a time.
  template <class Sink>
  [[gnu::always_inline]] void recover_taps(const T* products, int64_t at, Sink& sink) const {
    Reg<T> half[m][P];
    for (int x = 0; x < P; ++x) {
      Reg<T> in[P], out[m];
      for (int y = 0; y < P; ++y) in[y] = load_once(products + (y * P + x) * kPanel<T>);
      F::taps(in, out);
      for (int y = 0; y < m; ++y) half[y][x] = out[y];
    }
    for (int y = 0; y < m; ++y) {
      Reg<T> out[m];
      F::taps(half[y], out);
      for (int x = 0; x < m; ++x) out[x] *= T(1) / T(F::divisor * F::divisor);
      sink(at + y * m * inner_, inner_, out);
    }
  }

  const Correlation<T>& problem_;
  bool inside_;  // the rows are the inner side
  int64_t inner_, others_, across_, down_;
  int64_t held_;  // rows of tiles
  WinogradOperand<T, m, r, true> windows_;
  WinogradOperand<T, m, r, false> positions_;
  Scratch<T> products_;
};
