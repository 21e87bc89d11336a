// Makes the blocks of weight_gradient/block.h, in the way that is cheapest for the sizes at hand.
//
//   dots: both operands are copied once into padded arrays in which every tap is an offset, and
//     vectors run along the positions; no unfolding at all. For few channels or many positions.
//   lanes: vectors run along the rows, which are turned once, and windows are broadcast
//   (weight_gradient/rows_in_lanes.h).
//     For many rows.
//   columns: vectors run along the columns of windows, whose lines have their channels inside, and
//     rows are broadcast (weight_gradient/columns_in_lanes.h). For many channels.
//   tiles: 3 x 3 and 5 x 5 kernels with fewer products, in both dimensions (winograd/both_axes.h,
//   for
//     many channels) or along one (winograd/one_axis_positions.h, and winograd/one_axis_channels.h
//     for many rows).

// Bytes of padded arrays held at a time.
constexpr int64_t kPlaneBytes = 128 << 10;

enum class Way { dots, lanes, columns, tiles };

// A way to make a block, and how its values are laid out.
struct Choice {
  Way way;
  Layout layout;
  double cost;        // instructions for one sample and column
  size_t tiling = 0;  // which of the tilings
};

// What tiles there are for a kernel.
template <class T>
using Tilings =
    std::variant<std::monostate, TileTransform<T, 3, 2>, TileTransform<T, 3, 3>,
                 TileTransform<T, 3, 4>, TileLines<T, 5, LineParts>, TileLines<T, 3, LineChannels>,
                 TileLines<T, 5, LineChannels>, TileRows<T, 3>, TileRows<T, 5>>;

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

// The arrays of a way.
template <class T>
Planes planes_of(const Correlation<T>& p, int64_t channels, Way way) {
  return Planes::make<T>(p.axes, channels, kPlaneBytes,
                         way == Way::lanes ? kLanePositions : std::numeric_limits<int64_t>::max());
}

// The cheapest way for a block, by the instructions of products and of copies.
template <class T>
Choice choose_way(const Correlation<T>& p, int64_t rows, int64_t channels) {
  // Copies of an entry, what shifted vectors cost that lie across lines of the cache, and what it
  // takes to store a sum: measured.
  constexpr double kCopy = 0.3, kTurn = kVectorBytes == 64 ? 1.2 : 0.8;
  constexpr double kShifted = kVectorBytes == 64 ? 2.6 : 1.3, kStored = 14;
  const double width = channels * p.kernel;
  const double reuse = p.large.size[0] > 1 ? 1 : p.columns;
  const Planes planes = planes_of(p, channels, Way::dots);
  const double flat = planes.slabs() * planes.flat, fill = kCopy * channels * planes.phases * flat;
  Choice best{
      Way::dots,
      {round_up(channels * p.kernel, kWidth<T>), p.kernel, 1, p.taps.kernel[2]},
      kShifted * rows * width * (flat / kWidth<T> + 4.0) + kCopy * rows * flat + fill / reuse};
  auto offer = [&](const Choice& choice) {
    if (choice.cost < best.cost) best = choice;
  };
  const Planes slabs = planes_of(p, channels, Way::lanes);
  const int64_t pitch = round_up(rows, kWidth<T>);
  if (pitch * slabs.positions(0) * sizeof(T) <= kTurnedBytes)
    offer({Way::lanes,
           {1, p.kernel * pitch, pitch, p.taps.kernel[2] * pitch},
           lanes_cost(pitch / kWidth<T>) * width * (p.positions + kStored * slabs.slabs()) +
               kTurn * rows * p.positions + fill / (slabs.slabs() > 1 ? 1 : reuse)});
  if (Columns<T>::applies(p, channels))
    offer({Way::columns, Columns<T>::layout(p.taps, channels),
           Columns<T>::cost(p, rows, channels, reuse)});
  each_tiling(p, [&]<size_t index>() {
    using Tiles = std::variant_alternative_t<index, Tilings<T>>;
    offer(
        {Way::tiles, Tiles::layout(rows, channels), Tiles::cost(p, rows, channels, reuse), index});
  });
  return best;
}

// Makes blocks of G, one (sample, column) after another. One object serves one thread.
template <class T>
class BlockMaker {
 public:
  // For blocks of at most so many rows and channels.
  BlockMaker(const Correlation<T>& problem, int64_t rows, int64_t channels, const Choice& choice)
      : problem_(problem), choice_(choice), planes_(planes_of(problem, channels, choice.way)) {
    if (choice_.way == Way::tiles) {
      each_tiling(problem, [&]<size_t index>() {
        if (index == choice_.tiling) tiles_.template emplace<index>(problem, rows, channels);
      });
      return;
    }
    if (choice_.way == Way::columns) {
      columns_.emplace(problem, channels);
      return;
    }
    if (choice_.way == Way::lanes) {
      if (planes_.slabs() == 1 && problem.columns == 1)
        together_ = std::clamp<int64_t>(kLanePositions / problem.positions, 1, problem.samples);
      arrays_.emplace(together_ * channels * planes_.phases * planes_.plane);
      lanes_.emplace(planes_, problem.taps.kernel, rows, channels, together_);
      return;
    }
    arrays_.emplace(channels * planes_.phases * planes_.plane + planes_.flat);
    rows_.emplace(rows * planes_.flat);
    const auto taps = planes_.tap_offsets(problem.taps.kernel);
    offsets_.resize(channels * problem.kernel);
    for (int64_t b = 0; b < channels; ++b)
      for (const auto& [offset, index] : taps)
        offsets_[b * problem.kernel + index] = b * planes_.phases * planes_.plane + offset;
  }

  int64_t size(const Block& block) const {
    return choice_.layout.size(block.rows(), block.channels());
  }

  // sink(at, pitch, g): the values of the block, an array of a few vectors at a time, of which the
  // i-th is at entry at + i * pitch of the layout. `values` is room for a block. Sinks are copied
  // and assigned.
  template <class Sink>
  void visit(T* values, const Block& block, int64_t n, int64_t v, Sink& sink) {
    if (choice_.way != Way::tiles) {
      make(values, block, {n, n + 1}, v, false);
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

  // Samples [first, last).
  struct Samples {
    int64_t first, last;
    int64_t count() const { return last - first; }
  };

  // f(samples, v) for units [begin, end), the pairs of a sample and a column: samples of one column
  // by as many as can be made at once.
  template <class F>
  void each_unit(int64_t begin, int64_t end, F f) const {
    for (int64_t unit = begin, some; unit < end; unit += some) {
      const int64_t n = unit / problem_.columns;
      some = std::min(together_, end - unit);
      f(Samples{n, n + some}, unit % problem_.columns);
    }
  }

  // values (+)= G of the block, summed over the samples, with a function applied to either operand,
  // in another way than tiles. What lies between the rows is not always written: it must be zero
  // when it is new.
  template <class F = Identity, class H = Identity>
  void make(T* values, const Block& block, const Samples& samples, int64_t v, bool accumulate,
            F of_small = {}, H of_large = {}) {
    make_of(problem_.small, problem_.large, values, block, samples, v, accumulate, of_small,
            of_large);
  }

  // squares += sum m x², sums += sum g x, where the problem has m and x, and `g` is like m.
  void make_both(T* squares, T* sums, const Block& block, const Samples& samples,
                 const Grid<const T>& g, bool x_is_small) {
    const Grid<const T>&small = problem_.small, &large = problem_.large;
    if (x_is_small) {
      make_of(small, g, sums, block, samples, 0, true, Identity{}, Identity{});
      make_of(small, large, squares, block, samples, 0, true, Square{}, Identity{});
      return;
    }
    if (choice_.way == Way::columns) {
      make_of(g, large, sums, block, samples, 0, true, Identity{}, Identity{});
      make_of(small, large, squares, block, samples, 0, true, Identity{}, Square{});
      return;
    }
    // Windows are copied once, and squared where they are.
    key_ = {};
    for (int64_t slab = 0; slab < planes_.slabs(); ++slab) {
      take_large(large, block, samples, 0, slab, Identity{});
      take_small(g, block, samples, 0, slab, Identity{});
      multiply(sums, block, samples.count(), slab, true);
      square_large(block, samples.count(), slab);
      take_small(small, block, samples, 0, slab, Identity{});
      multiply(squares, block, samples.count(), slab, true);
    }
  }

 private:
  // What the windows were made from.
  struct Key {
    const T* from = nullptr;
    int64_t channels = 0, slab = 0;
    bool squared = false;
    bool operator==(const Key&) const = default;
  };

  // make() of other grids than the problem's, which are like them.
  template <class F, class H>
  void make_of(const Grid<const T>& small, const Grid<const T>& large, T* values,
               const Block& block, const Samples& samples, int64_t v, bool accumulate, F of_small,
               H of_large) {
    const int64_t a = block.group * problem_.rows + block.a0;
    const int64_t b = block.group * problem_.channels + block.b0;
    if (choice_.way == Way::columns) {
      for (int64_t n = samples.first; n < samples.last; ++n)
        columns_->multiply(values, small, large, n, v, a, block.rows(), b, block.channels(),
                           accumulate || n > samples.first, of_small, of_large);
      return;
    }
    for (int64_t slab = 0; slab < planes_.slabs(); ++slab) {
      const Key key{large.channel(v, samples.first, b), block.channels(), slab,
                    std::is_same_v<H, Square>};
      if (std::exchange(key_, key) != key) take_large(large, block, samples, v, slab, of_large);
      take_small(small, block, samples, v, slab, of_small);
      multiply(values, block, samples.count(), slab, accumulate || slab > 0);
    }
  }

  // The windows of a block's channels.
  template <class F>
  void take_large(const Grid<const T>& large, const Block& block, const Samples& samples, int64_t v,
                  int64_t slab, F f) {
    const int64_t b = block.group * problem_.channels + block.b0;
    for (int64_t n = samples.first; n < samples.last; ++n)
      fill_planes<T>(arrays_->data() + (n - samples.first) * step(block), planes_, slab, large, v,
                     n, b, b + block.channels(), f, planes_.slabs() == 1);
  }

  // Entries of a sample's arrays. A single slab has its zeros always in the same places.
  int64_t step(const Block& block) const {
    return block.channels() * planes_.phases * planes_.plane;
  }

  // Squares them, and nothing that an earlier slab has left beside them.
  void square_large(const Block& block, int64_t samples, int64_t slab) {
    for (int64_t c = 0; c < samples * block.channels() * planes_.phases; ++c)
      for (int64_t z = 0; z < planes_.filled(0, slab); ++z)
        for (int64_t y = 0; y < planes_.filled(1, slab); ++y) {
          T* row = arrays_->data() + c * planes_.plane + planes_.row(z, y);
          for (int64_t x = 0; x < planes_.filled(2, slab); ++x) row[x] *= row[x];
        }
  }

  // Its rows, turned, or laid out like the planes.
  template <class F>
  void take_small(const Grid<const T>& s, const Block& block, const Samples& samples, int64_t v,
                  int64_t slab, F f) {
    const int64_t a = block.group * problem_.rows + block.a0, n = samples.first;
    if (choice_.way == Way::lanes) {
      for (int64_t i = 0; i < samples.count(); ++i)
        lanes_->take(s, v, n + i, a, block.rows(), slab, i, samples.count(), f);
      return;
    }
    fill_positions<T>(rows_->data(), planes_.flat, planes_, slab, s, v, n, a, a + block.rows(), f);
  }

  // values (+)= rows times windows, as they were taken.
  void multiply(T* values, const Block& block, int64_t samples, int64_t slab, bool accumulate) {
    if (choice_.way == Way::lanes)
      return lanes_->multiply(arrays_->data(), step(block), samples, block.rows(), block.channels(),
                              slab, values, accumulate);
    dot_block<T>(rows_->data(), planes_.flat, block.rows(), arrays_->data(), offsets_.data(),
                 block.channels() * problem_.kernel, planes_.extent<T>(slab), values,
                 choice_.layout.row, accumulate);
  }

  const Correlation<T>& problem_;
  int64_t together_ = 1;  // samples that are made at once: of one column only
  Choice choice_;
  Planes planes_;
  std::vector<int64_t> offsets_;
  std::optional<Scratch<T>> arrays_, rows_;
  std::optional<Lanes<T>> lanes_;
  std::optional<Columns<T>> columns_;
  Tilings<T> tiles_;
  Key key_;
};
