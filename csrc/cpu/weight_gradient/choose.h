// The strategies for a block of G, the one function that chooses among them, and the object that
// makes blocks by the chosen one.
//
// A strategy has applies(p), layout(p, rows, channels) and cost(p, rows, channels), an estimate of
// instructions; it is made for blocks of at most so many rows and channels, and then visits them. A
// direct one also adds to sums.

template <class T>
using Strategies = std::variant<Direct<T, PositionsInLanes>, Direct<T, RowsInLanes>,
                                Winograd<T, 3, 2>, Winograd<T, 3, 4>, Winograd<T, 5, 2>>;
template <class T, size_t index>
using Strategy = std::variant_alternative_t<index, Strategies<T>>;

// f<index>() for each strategy.
template <class T, class F>
void each_strategy(F f) {
  [&]<size_t... index>(std::index_sequence<index...>) {
    (f.template operator()<index>(), ...);
  }(std::make_index_sequence<std::variant_size_v<Strategies<T>>>{});
}

// A strategy, how it lays out values, and what it takes for one sample and column.
struct Choice {
  size_t strategy;
  Layout layout;
  double cost = std::numeric_limits<double>::infinity();
};

// The cheapest strategy for a block.
template <class T>
Choice choose(const Correlation<T>& p, int64_t rows, int64_t channels) {
  Choice best;
  each_strategy<T>([&]<size_t index>() {
    using S = Strategy<T, index>;
    const double cost = S::applies(p) ? S::cost(p, rows, channels) : best.cost;
    if (cost < best.cost) best = {index, S::layout(p, rows, channels), cost};
  });
  return best;
}

// Makes blocks of G, one (sample, column) after another. One object serves one thread.
template <class T>
class BlockMaker {
 public:
  // For blocks of at most so many rows and channels.
  BlockMaker(const Correlation<T>& p, int64_t rows, int64_t channels, const Choice& choice)
      : problem_(p) {
    each_strategy<T>([&]<size_t index>() {
      if (index == choice.strategy)
        strategy_.emplace(std::in_place_index<index>, p, rows, channels);
    });
  }

  // sink(at, pitch, g): the values of the block, an array of a few vectors at a time, of which the
  // i-th is at entry at + i * pitch of the layout. Sinks are copied and assigned.
  template <class Sink>
  void visit(const Block& block, int64_t n, int64_t v, Sink& sink) {
    std::visit([&](auto& strategy) { strategy.visit(block, n, v, sink); }, *strategy_);
  }

  // values += G of the block, summed over units [begin, end), the pairs of a sample and a column,
  // from grids like the problem's with a function applied to either: of a problem that may not be
  // transformed, so that the strategy is direct.
  template <class F, class H>
  void add(T* values, const Grid<const T>& small, const Grid<const T>& large, const Block& block,
           int64_t begin, int64_t end, F of_small, H of_large) {
    auto make = [&](const Samples& samples, int64_t v) {
      std::visit(
          [&](auto& strategy) {
            if constexpr (std::decay_t<decltype(strategy)>::kDirect)
              strategy.make(values, small, large, block, samples, v, true, of_small, of_large);
          },
          *strategy_);
    };
    if (problem_.columns == 1) return make({begin, end}, 0);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t n = unit / problem_.columns;
      make({n, n + 1}, unit % problem_.columns);
    }
  }

 private:
  const Correlation<T>& problem_;
  std::optional<Strategies<T>> strategy_;
};
