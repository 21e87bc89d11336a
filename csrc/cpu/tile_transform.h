// Per-sample weight gradients of 3 x 3 and 5 x 5 convolutions with fewer products.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// point_transform.h in both dimensions. Sums over positions are taken on the products, so they are
// points^2 matrix products over tiles of positions: a tile of 2 x 2 takes 16 products instead of 36
// for 3 x 3 taps and 36 instead of 100 for 5 x 5, one of 4 x 4 takes 36 instead of 144.
//
// Vectors run along the block's rows or along its channels, whichever fills them better (the inner
// side); the other side is broadcast. Products [other][points^2][kPanel] of a few others stay in
// the first-level cache, and their taps are handed on while they are in registers.

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

  // The side of fewer vectors in all; of equal ones that which comes in whole panels.
  static bool rows_inside(int64_t rows, int64_t channels) {
    const int64_t row_vectors = ceil_div(rows, kWidth<T>);
    const int64_t channel_vectors = ceil_div(channels, kWidth<T>);
    if (row_vectors * channels != channel_vectors * rows)
      return row_vectors * channels < channel_vectors * rows;
    return row_vectors % kColumns == 0 || channel_vectors % kColumns != 0;
  }

  // Entries from tap to tap.
  static int64_t pitch(int64_t rows, int64_t channels) {
    return round_up(rows_inside(rows, channels) ? rows : channels, kWidth<T>);
  }

  // Instructions for a block of one sample and column, of `reuse` that share their windows.
  static double cost(const Correlation<T>& p, int64_t rows, int64_t channels, double reuse) {
    const bool inside = rows_inside(rows, channels);
    const double tiles = tiles_down(p) * tiles_across(p);
    const double row_vectors = ceil_div(rows, kWidth<T>);
    const double channel_vectors = ceil_div(channels, kWidth<T>);
    const double pairs = inside ? row_vectors * channels : channel_vectors * rows;
    const double recovery = kPlanes + 2 * (P + kTaps) * kTaps + 3 * kTaps * kTaps;
    return pairs * (kPlanes * (tiles + 3) + recovery) +
           tiles * row_vectors * (4 * kPlanes + 3 * kTile * kTile * kWidth<T>)+tiles *
               channel_vectors * (7 * kPlanes + 3 * kTile * kTile * kWidth<T>) / reuse;
  }

  TileTransform(const Correlation<T>& p, int64_t rows, int64_t channels)
      : inside_(rows_inside(rows, channels)),
        inner_(pitch(rows, channels)),
        others_(inside_ ? channels : rows),
        across_(tiles_across(p)),
        down_(tiles_down(p)),
        slab_(std::clamp<int64_t>(
            kSlabBytes / (kPlanes * across_ * (kPanel<T> + others_) * sizeof(T)), 1, down_)),
        windows_(p, inside_ ? channels : kPanel<T>, across_, down_, slab_,
                 slots(inside_ ? channels : inner_)),
        positions_(p, inside_ ? kPanel<T> : rows, across_, down_, slab_, 1),
        products_(kPlanes * kPanel<T> *
                  (slabs() > 1 ? panels(inner_) * others_ : std::min(others_at_once(1), others_))) {
  }

  // sink(at, g, turn): vectors of G of rows [a, a + rows) and channels [b, b + channels), at entry
  // `at` of [other][tap][inner].
  template <class Sink>
  void visit(int64_t n, int64_t v, int64_t a, int64_t rows, int64_t b, int64_t channels,
             Sink& sink) {
    const int64_t inner = inside_ ? rows : channels, others = inside_ ? channels : rows;
    const int64_t count = panels(inner);
    for (int64_t slab = 0; slab < slabs(); ++slab)
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
        const int64_t step = others_at_once(last - first);
        for (int64_t other = 0; other < others; other += step) {
          const int64_t some = std::min(step, others - other);
          if (inside_ || panel == 0)
            positions_.fetch_next(n, v, inside_ ? a + first : a, inside_ ? last - first : rows,
                                  slab, other / step, ceil_div(others, step));
          T* products = products_.data();
          if (slabs() > 1) products += (panel * others_ + other) * kPlanes * kPanel<T>;
          multiply(inside_ ? x : s, inside_ ? s : x, other, some, last - first, slab, products);
          if (slab + 1 < slabs()) continue;
          recover(products, some, last - first, other * kTaps * kTaps * inner_ + first, sink);
        }
      }
  }

 private:
  static constexpr int64_t kSlabBytes = 224 << 10, kHeldBytes = 128 << 10;

  // Others at a time: a few tiles of products, more where the inner side's planes are many, as they
  // come from the second-level cache each time.
  static constexpr int64_t others_at_once(int64_t lanes) {
    return (P == 4 ? 2 : 3) * tile_rows(ceil_div(lanes, kWidth<T>));
  }

  static int64_t tiles_across(const Correlation<T>& p) { return ceil_div(p.small.size[5], kTile); }
  static int64_t tiles_down(const Correlation<T>& p) { return ceil_div(p.small.size[4], kTile); }
  static int64_t panels(int64_t inner) { return ceil_div(inner, kPanel<T>); }
  int64_t slabs() const { return ceil_div(down_, slab_); }

  // Columns of a sample share its windows: all are held if they are few.
  int64_t slots(int64_t channels) const {
    const int64_t bytes = kPlanes * across_ * down_ * channels * sizeof(T);
    return bytes <= kHeldBytes ? slabs() * (inside_ ? 1 : panels(inner_)) : 1;
  }

  // products[other][point][inner] (+)= sum over the slab's tiles
  void multiply(const T* outer, const T* inner, int64_t other, int64_t others, int64_t lanes,
                int64_t slab, T* products) {
    const int64_t outer_plane = inside_ ? windows_.plane() : positions_.plane();
    const int64_t inner_plane = inside_ ? positions_.plane() : windows_.plane();
    const int64_t outer_pitch = inside_ ? windows_.pitch() : positions_.pitch();
    const int64_t tiles = std::min(slab_, down_ - slab * slab_) * across_;
    product_rows<T>(outer + other, 1, outer_pitch, others, inner, lanes, tiles, products,
                    kPlanes * kPanel<T>, slab > 0, {kPlanes, outer_plane, inner_plane, kPanel<T>});
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
