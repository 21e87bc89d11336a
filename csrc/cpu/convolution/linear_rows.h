// Linear layers on the few rows of a batch, where products are bound by reading the weight.
//
//   pull:    out[n, i] = factor(n, i) sum_o s[n, o] f(W[o, i])    parallel over stretches of i
//   weight:  D[o, i] = sum_n s[n, o] f(x[n, i])                   parallel over blocks of o
//
// Both of a diagonal, where f and the factor are squared, of a gradient, or of both at once. Grids
// are [N, features]. Weights, inputs and results are dense along i. Rows of s that are one and the
// same, as a constant Hessian has them, are multiplied once.

constexpr int kRowBlock = 6, kStripVectors = kManyRegisters ? 4 : 2;
template <class T>
constexpr int64_t kStrip = kStripVectors * kWidth<T>;

// What goes through a layer: from s to out, by squares or not.
template <class T>
struct Flow {
  Grid<const T> s;
  Grid<T> out;
  bool squared;
  bool same() const { return s.stride[1] == 0; }
};

// to[r * pitch + x] = (to +) sum_j a[r * a_row + j * a_step] b[j * b_step + x], R rows of a strip.
template <class T, int R, bool kAdd>
[[gnu::always_inline]] inline void row_tile(const T* __restrict a, int64_t a_row, int64_t a_step,
                                            const T* __restrict b, int64_t b_step, int64_t terms,
                                            T* to, int64_t pitch) {
  Reg<T> acc[R][kStripVectors] = {};
  if constexpr (kAdd)
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kStripVectors; ++v) acc[r][v] = load(to + r * pitch + v * kWidth<T>);
  for (int64_t j = 0; j < terms; ++j, a += a_step, b += b_step) {
    Reg<T> columns[kStripVectors];
    for (int v = 0; v < kStripVectors; ++v) columns[v] = load(b + v * kWidth<T>);
    for (int r = 0; r < R; ++r) {
      const Reg<T> weight = broadcast(a[r * a_row]);
      for (int v = 0; v < kStripVectors; ++v) acc[r][v] += weight * columns[v];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kStripVectors; ++v) store(to + r * pitch + v * kWidth<T>, acc[r][v]);
}

// Tiles side by side up to `width`, whose b are b_strip apart. On its own, so that accumulators
// stay in registers whatever is around a call.
template <class T, int R, bool kAdd>
[[gnu::noinline]] void strip_sums(const T* a, int64_t a_row, int64_t a_step, const T* b,
                                  int64_t b_step, int64_t b_strip, int64_t terms, T* to,
                                  int64_t pitch, int64_t width) {
  for (int64_t x = 0; x < width; x += kStrip<T>, b += b_strip)
    row_tile<T, R, kAdd>(a, a_row, a_step, b, b_step, terms, to + x, pitch);
}

// Calls body.template operator()<R>() for R rows, at most kRowBlock.
template <class Body>
[[gnu::always_inline]] inline void with_rows(int64_t rows, Body body) {
  switch (rows) {
    case 6:
      return body.template operator()<6>();
    case 5:
      return body.template operator()<5>();
    case 4:
      return body.template operator()<4>();
    case 3:
      return body.template operator()<3>();
    case 2:
      return body.template operator()<2>();
    default:
      return body.template operator()<1>();
  }
}

template <class T>
void copy_values(T* to, const T* from, int64_t count, bool squared) {
  if (squared)
    for (int64_t x = 0; x < count; ++x) to[x] = from[x] * from[x];
  else
    std::copy(from, from + count, to);
}

// A stretch of the weight goes through the cache in blocks, each packed for all ways while it is
// there: its rows are far apart, often by a power of two.
template <class T>
void linear_input(const Context& context, std::span<const Flow<T>> ways, Grid<const T> weight,
                  Grid<const T> z, Activation activation, double slope) {
  constexpr int64_t kStretch = 4 * kStrip<T>, kBlock = 64;
  const int64_t features = weight.size[2], terms = weight.size[1], samples = z.size[1];
  context.parallel_for(ceil_div(features, kStretch), [&](int64_t task) {
    const int64_t first = task * kStretch, width = std::min(kStretch, features - first);
    Scratch<T> block(kBlock * kStretch), sums(ways.size() * samples * kStretch);
    for (int64_t o = 0; o < terms; o += kBlock) {
      const int64_t count = std::min(kBlock, terms - o);
      for (size_t k = 0; k < ways.size(); ++k) {
        const Grid<const T>& s = ways[k].s;
        const int64_t rows = ways[k].same() ? 1 : samples;
        for (int64_t j = 0; j < count; ++j)
          copy_values(block.data() + j * kStretch, weight.data + (o + j) * weight.stride[1] + first,
                      width, ways[k].squared);
        for (int64_t n = 0; n < rows; n += kRowBlock)
          with_rows(std::min<int64_t>(kRowBlock, rows - n), [&]<int R>() {
            strip_sums<T, R, true>(s.data + n * s.stride[1] + o * s.stride[2], s.stride[1],
                                   s.stride[2], block.data(), kStretch, kStrip<T>, count,
                                   sums.data() + (k * samples + n) * kStretch, kStretch, width);
          });
      }
    }
    for (const Flow<T>& way : ways) {
      const Slopes<T> slopes(activation, slope, way.squared);
      const T* sum = sums.data() + (&way - ways.data()) * samples * kStretch;
      for (int64_t n = 0; n < samples; ++n)
        write_row<T>(way.out.data + n * way.out.stride[1] + first, 1, {0, 1},
                     sum + (way.same() ? 0 : n) * kStretch, slopes,
                     z.data + n * z.stride[1] + first, 1, width);
    }
  });
}

// A block of rows of the result at a time, from left to right, as memory likes to be written.
// Strips of f(x) lie one after the other, all samples of a strip together.
template <class T>
void linear_weight(const Context& context, std::span<const Flow<T>> ways, Grid<const T> x) {
  const int64_t samples = x.size[1], features = x.size[2];
  const int64_t padded = round_up(features, kStrip<T>);
  Scratch<T> strips(ways.size() * samples * padded);
  for (size_t k = 0; k < ways.size(); ++k) {
    const int64_t terms = ways[k].same() ? 1 : samples;
    for (int64_t n = 0; n < samples; ++n)
      for (int64_t i = 0; i < features; i += kStrip<T>) {
        const T* from = x.data + n * x.stride[1] + i;
        T* to = strips.data() + k * samples * padded + i * terms + n % terms * kStrip<T>;
        const int64_t width = std::min(kStrip<T>, features - i);
        for (int64_t q = 0; q < width; ++q) to[q] += ways[k].squared ? from[q] * from[q] : from[q];
      }
  }
  const int64_t rows = ways[0].out.size[1], blocks = ceil_div(rows, kRowBlock);
  context.parallel_for(blocks, [&](int64_t task) {
    alignas(64) T last[kRowBlock * kStrip<T>];
    const int64_t first = task * kRowBlock, block = std::min<int64_t>(kRowBlock, rows - first);
    for (size_t k = 0; k < ways.size(); ++k) {
      const auto& [s, out, squared] = ways[k];
      const int64_t terms = ways[k].same() ? 1 : samples;
      const T* own = s.data + first * s.stride[2];
      const T* of_way = strips.data() + k * samples * padded;
      const int64_t whole = features / kStrip<T> * kStrip<T>, rest = features - whole;
      T* to = out.data + first * out.stride[1];
      with_rows(block, [&]<int R>() {
        strip_sums<T, R, false>(own, s.stride[2], s.stride[1], of_way, kStrip<T>, terms * kStrip<T>,
                                terms, to, out.stride[1], whole);
        if (rest == 0) return;
        strip_sums<T, R, false>(own, s.stride[2], s.stride[1], of_way + whole * terms, kStrip<T>, 0,
                                terms, last, kStrip<T>, kStrip<T>);
      });
      for (int64_t r = 0; r < block; ++r)
        std::copy_n(last + r * kStrip<T>, rest, to + r * out.stride[1] + whole);
    }
  });
}
