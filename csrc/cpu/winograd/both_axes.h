// Per-sample weight gradients of 3 x 3 convolutions from many channels with fewer products.
//
// winograd/toom_cook.h in both dimensions. Sums over positions are taken on the products, so they
// are points^2 matrix products over tiles of positions: a tile of 2 x 2 takes 16 products instead
// of 36, one of 3 x 3 takes 25 instead of 81, one of 4 x 4 36 instead of 144.
//
// Vectors run along the block's rows or along its channels, whichever fills them better (the inner
// side), a panel of them at a time; the other side is broadcast, a pack of it at a time. Products
// [other][points^2][kPanel] of a pack stay in the first-level cache, and their taps are handed on
// while they are in registers.

template <class T, int kTaps, int kTile>
class TileTransform {
  using Points = PointTransform<T, kTaps, kTile>;
  static constexpr int P = Points::points, kPlanes = P * P;

 public:
  static bool applies(const Correlation<T>& p) {
    const Taps& t = p.taps;
    for (int d = 0; d < 3; ++d)
      if (t.kernel[d] != (d == 0 ? 1 : kTaps) || t.stride[d] != 1 || t.dilation[d] != 1)
        return false;
    return p.may_transform && p.small.size[3] == 1 && t.padding[0] == 0 && p.large.size[3] == 1;
  }

  // Vectors of a panel, and others that it meets at a time: sums enough to hide their latency, few
  // enough to go on with the next point while they are stored.
  static constexpr int kVectors = kManyRegisters ? 3 : 2, kOthers = 4;

  // The side of fewer vectors in all; of equal ones that which comes in whole panels, or in more
  // than one vector.
  static bool rows_inside(int64_t rows, int64_t channels) {
    const int64_t row_vectors = ceil_div(rows, kWidth<T>);
    const int64_t channel_vectors = ceil_div(channels, kWidth<T>);
    if (row_vectors * channels != channel_vectors * rows)
      return row_vectors * channels < channel_vectors * rows;
    if (row_vectors % kVectors == 0 || channel_vectors % kVectors == 0)
      return row_vectors % kVectors == 0;
    return row_vectors > 1 || channel_vectors == 1;
  }

  // Entries from tap to tap.
  static int64_t pitch(int64_t rows, int64_t channels) {
    return round_up(rows_inside(rows, channels) ? rows : channels, kWidth<T>);
  }

  static Layout layout(int64_t rows, int64_t channels) {
    return tap_planes(rows_inside(rows, channels), kTaps, pitch(rows, channels));
  }

  // Instructions for a block of one sample and column, of `reuse` that share their windows.
  static double cost(const Correlation<T>& p, int64_t rows, int64_t channels, double reuse) {
    const bool inside = rows_inside(rows, channels);
    const double tiles = tiles_down(p) * tiles_across(p);
    const double row_vectors = ceil_div(rows, kWidth<T>);
    const double channel_vectors = ceil_div(channels, kWidth<T>);
    const double pairs = inside ? row_vectors * channels : channel_vectors * rows;
    const double recovery = kPlanes + 2 * (P + kTaps) * kTaps + 3 * kTaps * kTaps;
    // Measured: what it takes to store products, and to add to them after the first slab.
    const double slabs = ceil_div(tiles_down(p), slab_of(p, inside ? channels : rows));
    const double stored = slabs > 1 ? 14 * slabs : 2;
    const double lone = kManyRegisters && (inside ? row_vectors : channel_vectors) == 1 ? 1.7 : 1;
    const double narrow = lone * ((inside ? channels : rows) % kOthers == 0 ? 1 : 1.2);
    const double turned = 1.5 * kTile * kTile * kWidth<T>;
    constexpr double kTurned = kManyRegisters ? 1 : 2;
    return pairs * (narrow * kPlanes * (tiles + stored) + recovery) +
           kTurned * tiles *
               (row_vectors * (4 * kPlanes + turned) +
                channel_vectors * (7 * kPlanes + turned) / reuse);
  }

  TileTransform(const Correlation<T>& p, int64_t rows, int64_t channels)
      : inside_(rows_inside(rows, channels)),
        inner_(pitch(rows, channels)),
        others_(inside_ ? channels : rows),
        across_(tiles_across(p)),
        down_(tiles_down(p)),
        slab_(slab_of(p, others_)),
        windows_(p, inside_ ? channels : kPanel<T>, inside_ ? kPack : 0, across_, down_, slab_,
                 slots(inside_ ? channels : inner_)),
        positions_(p, inside_ ? kPanel<T> : rows, inside_ ? 0 : kPack, across_, down_, slab_, 1),
        products_(kPlanes * kPanel<T> * (slabs() > 1 ? panels(inner_) * others_ : step())) {}

  // sink(at, pitch, g): vectors of G of rows [a, a + rows) and channels [b, b + channels), at
  // entries at, at + pitch, ... of [other][tap][inner].
  template <class Sink>
  void visit(int64_t n, int64_t v, int64_t a, int64_t rows, int64_t b, int64_t channels,
             Sink& sink) {
    const int64_t inner = inside_ ? rows : channels, others = inside_ ? channels : rows;
    const int64_t count = panels(inner), slabs = this->slabs();
    for (int64_t slab = 0; slab < slabs; ++slab)
      for (int64_t panel = 0; panel < count; ++panel) {
        // Panels of nearly as many vectors.
        const int64_t vectors = ceil_div(inner, kWidth<T>);
        const int64_t first = vectors * panel / count * kWidth<T>;
        const int64_t last = std::min(inner, vectors * (panel + 1) / count * kWidth<T>);
        const int64_t slot = slab * (inside_ ? 1 : count) + (inside_ ? 0 : panel);
        const T* x = inside_ ? windows_.planes(slot, n, v, b, channels, slab)
                             : windows_.planes(slot, n, v, b + first, last - first, slab);
        const T* s = inside_ ? positions_.planes(0, n, v, a + first, last - first, slab)
                             : positions_.planes(0, n, v, a, rows, slab);
        for (int64_t other = 0, step = this->step(); other < others; other += step) {
          const int64_t some = std::min(step, others - other);
          T* products = products_.data();
          if (slabs > 1) products += (panel * others_ + other) * kPlanes * kPanel<T>;
          const T* outer = (inside_ ? x : s) + other / kPack * kPlanes * plane(kPack);
          multiply(outer + other % kPack, inside_ ? s : x, some, last - first, slab, products);
          if (slab + 1 == slabs)
            recover(products, some, last - first, other * kTaps * kTaps * inner_ + first, sink);
        }
      }
  }

 private:
  static constexpr int64_t kSlabBytes = 224 << 10, kHeldBytes = 128 << 10;
  // Others that lie side by side. With AVX-512 a line of the cache would hold those of two steps.
  static constexpr int64_t kPack = kManyRegisters ? kRows : 2 * kRows;

  static int64_t tiles_across(const Correlation<T>& p) { return ceil_div(p.small.size[5], kTile); }
  static int64_t tiles_down(const Correlation<T>& p) { return ceil_div(p.small.size[4], kTile); }
  int64_t plane(int64_t lanes) const { return windows_.plane_size(lanes); }
  // Rows of tiles that are held at a time.
  static int64_t slab_of(const Correlation<T>& p, int64_t others) {
    const int64_t row = kPlanes * tiles_across(p) * (kPanel<T> + others) * sizeof(T);
    return std::clamp<int64_t>(kSlabBytes / row, 1, tiles_down(p));
  }

  // A single vector left over goes with the last panel.
  static int64_t panels(int64_t inner) {
    const int64_t vectors = ceil_div(inner, kWidth<T>);
    return kVectors == kColumns ? ceil_div(vectors, kVectors)
                                : std::max<int64_t>(1, vectors / kVectors);
  }
  int64_t slabs() const { return ceil_div(down_, slab_); }
  // Others that a panel meets at a time.
  int64_t step() const { return inner_ > kWidth<T> ? kOthers : kPack; }

  // Columns of a sample share its windows: all are held if they are few.
  int64_t slots(int64_t channels) const {
    const int64_t bytes = kPlanes * across_ * down_ * channels * sizeof(T);
    return bytes <= kHeldBytes ? slabs() * (inside_ ? 1 : panels(inner_)) : 1;
  }

  // products[other][point][inner] (+)= sum over the slab's tiles, for some others of a pack
  void multiply(const T* outer, const T* inner, int64_t others, int64_t lanes, int64_t slab,
                T* products) const {
    const int64_t tiles = std::min(slab_, down_ - slab * slab_) * across_;
    const auto run = lanes > 2 * kWidth<T> ? &TileTransform::multiply_rows<kOthers, 3>
                     : lanes > kWidth<T>   ? &TileTransform::multiply_rows<kOthers, 2>
                                           : &TileTransform::multiply_rows<kPack, 1>;
    (this->*run)(outer, inner, others, tiles, products, slab > 0);
  }

  // By R others at a time first, and C vectors.
  template <int R, int C>
  void multiply_rows(const T* outer, const T* inner, int64_t others, int64_t tiles, T* products,
                     bool accumulate) const {
    for (; others >= R; others -= R, outer += R, products += R * kPlanes * kPanel<T>)
      multiply_points<R, C>(outer, plane(kPack), inner, plane(C * kWidth<T>), tiles, products,
                            accumulate);
    if constexpr (R > 1)
      if (others > 0)
        multiply_rows<R <= 4 ? R - 1 : 4, C>(outer, inner, others, tiles, products, accumulate);
  }

  template <int R, int C>
  [[gnu::noinline]] static void multiply_points(const T* outer, int64_t outer_plane, const T* inner,
                                                int64_t inner_plane, int64_t tiles, T* products,
                                                bool accumulate) {
    for (int point = 0; point < kPlanes; ++point) {
      product_tile<T, R, C>(outer, 1, kPack, inner, C * kWidth<T>, tiles, products,
                            kPlanes * kPanel<T>, accumulate);
      outer += outer_plane;
      inner += inner_plane;
      products += kPanel<T>;
    }
  }

  template <class Sink>
  [[gnu::noinline]] void recover(const T* products, int64_t others, int64_t lanes, int64_t at,
                                 Sink& sink) const {
    recover_rows<T, kTaps, kTile>(products, kPanel<T>, kPlanes * kPanel<T>, others, lanes, at,
                                  inner_, sink);
  }

  bool inside_;  // the rows are the inner side
  int64_t inner_, others_, across_, down_, slab_;
  TileSide<T, kTaps, kTile, true> windows_;
  TileSide<T, kTaps, kTile, false> positions_;
  Scratch<T> products_;
};
