// Makes the blocks of correlation.h, in the way that is cheapest for the sizes at hand.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
//   dots: both operands are copied once into padded arrays in which every tap is an offset, and
//     vectors run along the positions; no unfolding at all. For few channels or many positions.
//   panels: windows are packed position by position, kPanel columns wide, and vectors run along
//     the columns. For few positions.
//   tiles: 3 x 3 and 5 x 5 kernels with fewer products, and vectors along the rows or the channels
//     (tile_transform.h, tile_rows.h) or along the positions (tile_dots.h).

// Bytes of padded arrays held at a time.
constexpr int64_t kPlaneBytes = 128 << 10;

enum class Way { dots, panels, tiles };

// How a block's values are laid out: entry (a, b, k) is at a * row + b * channel + k * tap.
struct Layout {
  Way way;
  int64_t row, channel, tap;
  size_t tiling = 0;  // which of the tilings

  // Values of a block with what lies between them, which is zero.
  int64_t size(int64_t rows, int64_t channels) const {
    return std::max(rows * row, channels * channel);
  }
};

// What tiles there are for a kernel.
template <class T>
using Tilings = std::variant<std::monostate, TileTransform<T, 3, 2>, TileTransform<T, 3, 3>,
                             TileTransform<T, 3, 4>, TileDots<T, 3>, TileTransform<T, 5, 2>,
                             TileDots<T, 5>, TileRows<T, 5>>;

// f<index>() for each of them that applies.
template <class T, class F>
void each_tiling(const Correlation<T>& p, F f) {
  auto offer = [&]<size_t index>() {
    if (std::variant_alternative_t<index, Tilings<T>>::applies(p)) f.template operator()<index>();
  };
  [&]<size_t... index>(std::index_sequence<index...>) {
    (offer.template operator()<index + 1>(), ...);
  }(std::make_index_sequence<std::variant_size_v<Tilings<T>> - 1>{});
}

template <class T>
bool has_tiling(const Correlation<T>& p) {
  bool found = false;
  each_tiling(p, [&]<size_t>() { found = true; });
  return found;
}

// Instructions of each way on one sample and column: products, and what comes with them.
template <class T>
Layout choose_layout(const Correlation<T>& p, int64_t rows, int64_t channels) {
  constexpr int64_t kPanelBytes = 256 << 10;
  const int64_t panel_width = round_up(channels * p.kernel, kPanel<T>);
  const double width = channels * p.kernel, lanes = round_up(channels * p.kernel, kWidth<T>);
  const double reuse = p.large.size[0] > 1 ? 1 : p.columns;
  const Planes planes = Planes::make<T>(p.axes(), channels, kPlaneBytes);
  Layout best{Way::dots, panel_width, p.kernel, 1};
  double cost = rows * width * (planes.slabs() * planes.flat / kWidth<T> + 4.0);
  if (planes.slabs() == 1 && lanes * p.positions * sizeof(T) <= kPanelBytes) {
    const double panels =
        rows * lanes / kWidth<T> * (p.positions + 4.0) + 4.0 * lanes * p.positions / reuse;
    if (panels < cost) {
      cost = panels;
      best.way = Way::panels;
    }
  }
  each_tiling(p, [&]<size_t index>() {
    using Tiles = std::variant_alternative_t<index, Tilings<T>>;
    const double tiles = Tiles::cost(p, rows, channels, reuse);
    if (tiles >= cost) return;
    cost = tiles;
    const bool inside = Tiles::rows_inside(rows, channels);
    const int64_t pitch = Tiles::pitch(rows, channels), other = p.kernel * pitch;
    best = {Way::tiles, inside ? 1 : other, inside ? other : 1, pitch, index};
  });
  return best;
}

// Makes blocks of G, one (sample, column) after another. One object serves one thread.
template <class T>
class BlockMaker {
 public:
  BlockMaker(const Correlation<T>& problem, int64_t rows, int64_t channels)
      : problem_(problem),
        block_rows_(rows),
        layout_(choose_layout(problem, rows, channels)),
        planes_(Planes::make<T>(problem.axes(), channels, kPlaneBytes)) {
    if (layout_.way == Way::tiles) {
      each_tiling(problem, [&]<size_t index>() {
        if (index == layout_.tiling) tiles_.template emplace<index>(problem, rows, channels);
      });
      return;
    }
    arrays_.emplace(channels * planes_.phases * planes_.plane + planes_.flat);
    if (layout_.way == Way::panels)
      panels_.emplace(layout_.row * problem.positions);
    else
      rows_.emplace(rows * planes_.flat);
    const auto taps = planes_.tap_offsets(problem.taps.kernel);
    offsets_.resize(channels * problem.kernel);
    for (int64_t b = 0; b < channels; ++b)
      for (const auto& [offset, index] : taps)
        offsets_[b * problem.kernel + index] = b * planes_.phases * planes_.plane + offset;
  }

  int64_t size(const Block& block) const { return layout_.size(block.rows(), block.channels()); }

  // sink(at, pitch, g): the values of the block, an array of a few vectors at a time, of which the
  // i-th is at entry at + i * pitch of the layout. `values` is room for a block. Sinks are copied
  // and assigned.
  template <class Sink>
  void visit(T* values, const Block& block, int64_t n, int64_t v, Sink& sink) {
    if (layout_.way != Way::tiles) {
      make(values, block, n, v);
      int64_t at = 0;
      auto pass = [&]<int C>() {
        Reg<T> g[C];
        for (int i = 0; i < C; ++i) g[i] = load(values + at + i * kWidth<T>);
        sink(at, kWidth<T>, g);
        at += C * kWidth<T>;
      };
      while (at + 4 * kWidth<T> <= size(block)) pass.template operator()<4>();
      while (at < size(block)) pass.template operator()<1>();
      return;
    }
    auto pass = [&](auto& tiles) {
      if constexpr (!std::is_same_v<decltype(tiles), std::monostate&>)
        tiles.visit(n, v, block.group * problem_.rows + block.a0, block.rows(),
                    block.group * problem_.channels + block.b0, block.channels(), sink);
    };
    std::visit(pass, tiles_);
  }

  // values = G of the block, with a function applied to either operand, in another way than tiles.
  // What lies between the rows is not always written: it must be zero when it is new.
  template <class F = Identity, class H = Identity>
  void make(T* values, const Block& block, int64_t n, int64_t v, F of_small = {}, H of_large = {}) {
    const int64_t a = block.group * problem_.rows + block.a0;
    const int64_t b = block.group * problem_.channels + block.b0;
    const int64_t width = block.channels() * problem_.kernel;
    for (int64_t slab = 0; slab < planes_.slabs(); ++slab) {
      const bool same = holds({b, b + block.channels(), n, column(v), slab});
      if (!same)
        fill_planes<T>(arrays_->data(), planes_, slab, problem_.large, v, n, b,
                       b + block.channels(), of_large);
      if (layout_.way == Way::panels) {
        if (!same) pack(width);
        multiply(values, block, a, n, v, width, of_small);
        continue;
      }
      fill_positions<T>(rows_->data(), planes_.flat, planes_, slab, problem_.small, v, n, a,
                        a + block.rows(), of_small);
      dot_block<T>(rows_->data(), planes_.flat, block.rows(), arrays_->data(), offsets_.data(),
                   width, planes_.extent<T>(slab), values, layout_.row, slab > 0);
    }
  }

 private:
  // What the windows were made from: channels, sample, column and slab.
  using Key = std::array<int64_t, 5>;

  int64_t column(int64_t v) const { return problem_.large.size[0] > 1 ? v : 0; }
  bool holds(const Key& key) { return std::exchange(key_, key) == key; }

  // panels[panel][t][j] = window value of column j at position t.
  [[gnu::noinline]] void pack(int64_t width) {
    const int64_t nz = planes_.count(0, 0), ny = planes_.count(1, 0), nx = planes_.count(2, 0);
    const T* arrays = arrays_->data();
    for (int64_t first = 0; first < width; first += kPanel<T>) {
      const int64_t wide = std::min<int64_t>(kPanel<T>, width - first);
      T* out = panels_->data() + first * problem_.positions;
      const int64_t* offsets = offsets_.data() + first;
      for (int64_t z = 0; z < nz; ++z)
        for (int64_t y = 0; y < ny; ++y, out += nx * kPanel<T>)
          gather_lines(out, kPanel<T>, arrays + planes_.row(z, y), offsets, wide, nx);
    }
  }

  template <class F>
  void multiply(T* values, const Block& block, int64_t a, int64_t n, int64_t v, int64_t width,
                F of_small) {
    const Grid<const T>& s = problem_.small;
    const T* base =
        s.data + std::min(v, s.size[0] - 1) * s.stride[0] + n * s.stride[1] + a * s.stride[2];
    int64_t row_stride = s.stride[2], step = s.stride[5];
    const bool even = (s.size[4] == 1 || s.stride[4] == s.stride[5] * s.size[5]) &&
                      (s.size[3] == 1 || s.stride[3] == s.stride[5] * s.size[5] * s.size[4]);
    if (!even || !std::is_same_v<F, Identity>) {
      if (!rows_) rows_.emplace(block_rows_ * problem_.positions);
      T* out = rows_->data();
      for (int64_t r = 0; r < block.rows(); ++r)
        for (int64_t z = 0; z < s.size[3]; ++z)
          for (int64_t y = 0; y < s.size[4]; ++y, out += s.size[5])
            copy_row(out, base + r * s.stride[2] + z * s.stride[3] + y * s.stride[4], s.size[5],
                     s.stride[5], of_small);
      base = rows_->data();
      row_stride = problem_.positions;
      step = 1;
    }
    for (int64_t first = 0; first < width; first += kPanel<T>)
      product_rows<T>(base, row_stride, step, block.rows(),
                      panels_->data() + first * problem_.positions, width - first,
                      problem_.positions, values + first, layout_.row, false);
  }

  const Correlation<T>& problem_;
  int64_t block_rows_;
  Layout layout_;
  Planes planes_;
  std::vector<int64_t> offsets_;
  std::optional<Scratch<T>> arrays_, rows_, panels_;
  Tilings<T> tiles_;
  Key key_{-1, -1, -1, -1, -1};
};
