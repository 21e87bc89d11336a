// Linear layers on the few rows of a batch, where products are bound by reading the weight.
//
//   input:   out[n, i] = factor(n, i) sum_o s[n, o] f(W[o, i])    parallel over stretches of i
//   weight:  D[o, i] = sum_n s[n, o] f(x[n, i])                   parallel over blocks of o
//
// Both of a diagonal, where f and the factor are squared, of a gradient, or of both at once. Grids
// are [N, features]. Weights, inputs and results are dense along i. Rows of s that are one and the
// same, as a constant Hessian has them, are multiplied once.

// What goes through a layer, by squares or not, and where its shares go; null if not wanted.
template <class T>
struct Flow {
  Grid<const T> s;
  bool squared;
  Grid<T> weight, input;
  T* bias;

  bool same() const { return s.stride[1] == 0; }
  // to[x] = f(from[x])
  void copy(T* to, const T* from, int64_t count) const {
    squared ? copy_dense(to, from, count, Square{}) : copy_dense(to, from, count, Identity{});
  }
};

// A stretch of the weight goes through the cache in blocks, each packed for all flows while it is
// there: its rows are far apart, often by a power of two.
template <class T>
void linear_input(const Context& context, std::span<const Flow<T>> flows, Grid<const T> weight,
                  Grid<const T> z, Activation activation, double slope) {
  constexpr int64_t kStretch = tuning::kLinearPanels * kPanel<T>, kBlock = tuning::kLinearRows;
  const int64_t features = weight.size[2], terms = weight.size[1], samples = z.size[1];
  context.parallel_for(ceil_div(features, kStretch), [&](int64_t task) {
    const int64_t first = task * kStretch, width = std::min(kStretch, features - first);
    Scratch<T> block(kBlock * kStretch), sums(flows.size() * samples * kStretch);
    for (int64_t o = 0; o < terms; o += kBlock) {
      const int64_t count = std::min(kBlock, terms - o);
      for (size_t k = 0; k < flows.size(); ++k) {
        const Grid<const T>& s = flows[k].s;
        for (int64_t j = 0; j < count; ++j)
          flows[k].copy(block.data() + j * kStretch,
                        weight.data + (o + j) * weight.stride[1] + first, width);
        for (int64_t x = 0; x < width; x += kPanel<T>)
          outer_panel<T>(Strided<T>{s.data + o * s.stride[2], s.stride[1], s.stride[2],
                                    block.data() + x, kStretch, count},
                         flows[k].same() ? 1 : samples, width - x,
                         Store<T>{sums.data() + k * samples * kStretch + x, kStretch, o > 0});
      }
    }
    for (size_t k = 0; k < flows.size(); ++k) {
      const Slopes<T> slopes(activation, slope, flows[k].squared);
      const Grid<T>& out = flows[k].input;
      for (int64_t n = 0; n < samples; ++n)
        write_row<T>(out.data + n * out.stride[1] + first, 1, {0, 1},
                     sums.data() + (k * samples + (flows[k].same() ? 0 : n)) * kStretch, slopes,
                     z.data + n * z.stride[1] + first, 1, width);
    }
  });
}

// A block of rows of the result at a time, from left to right, as memory is written best. Panels of
// f(x) follow each other: [panel][sample][lane].
template <class T>
void linear_weight(const Context& context, std::span<const Flow<T>> flows, Grid<const T> x) {
  const int64_t samples = x.size[1], features = x.size[2];
  const int64_t size = samples * round_up(features, kPanel<T>);
  Scratch<T> panels(flows.size() * size);
  for (size_t k = 0; k < flows.size(); ++k) {
    const int64_t terms = flows[k].same() ? 1 : samples;
    for (int64_t n = 0; n < samples; ++n)
      for (int64_t i = 0; i < features; i += kPanel<T>) {
        T* to = panels.data() + k * size + i * terms + n % terms * kPanel<T>;
        const T* from = x.data + n * x.stride[1] + i;
        const bool squared = flows[k].squared;
        for (int64_t q = 0; q < std::min<int64_t>(kPanel<T>, features - i); ++q)
          to[q] += squared ? from[q] * from[q] : from[q];
      }
  }
  const int64_t rows = flows[0].weight.size[1];
  context.parallel_for(ceil_div(rows, kRows), [&](int64_t task) {
    alignas(64) T last[kRows * kPanel<T>];
    const int64_t first = task * kRows, block = std::min<int64_t>(kRows, rows - first);
    for (size_t k = 0; k < flows.size(); ++k) {
      const Grid<const T>& s = flows[k].s;
      const Grid<T>& out = flows[k].weight;
      const int64_t terms = flows[k].same() ? 1 : samples;
      for (int64_t i = 0; i < features; i += kPanel<T>) {
        T* to = out.data + first * out.stride[1] + i;
        const int64_t width = std::min<int64_t>(kPanel<T>, features - i);
        const bool whole = width == kPanel<T>;
        outer_panel<T>(
            Strided<T>{s.data + first * s.stride[2], s.stride[2], s.stride[1],
                       panels.data() + k * size + i * terms, kPanel<T>, terms},
            block, width,
            whole ? Store<T>{to, out.stride[1], false} : Store<T>{last, kPanel<T>, false});
        for (int64_t r = 0; r < block && !whole; ++r)
          std::copy_n(last + r * kPanel<T>, width, to + r * out.stride[1]);
      }
    }
  });
}
