// Linear layers on the few rows of a batch, where products are bound by reading the weight.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
//   pull:    out[n, i] = factor(n, i) sum_o s[n, o] f(W[o, i])    parallel over stretches of i
//   weight:  D[o, i] = sum_n s[n, o] g(x[n, i])                   parallel over stretches of o
//
// Grids are [N, features]; f and g square or not. Weights, inputs and results are dense along i.

constexpr int kRowBlock = 6, kStripVectors = kManyRegisters ? 4 : 2;
template <class T>
constexpr int64_t kStrip = kStripVectors * kWidth<T>;

// to[r * pitch + x] = sum_j a[r * a_row + j * a_step] b[j * kStrip + x], R rows of a strip.
template <class T, int R>
[[gnu::always_inline]] inline void row_tile(const T* __restrict a, int64_t a_row, int64_t a_step,
                                            const T* __restrict b, int64_t terms, T* to,
                                            int64_t pitch) {
  Reg<T> acc[R][kStripVectors] = {};
  for (int64_t j = 0; j < terms; ++j, a += a_step, b += kStrip<T>) {
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

// The same for up to kRowBlock rows and the first `count` entries of a strip.
template <class T>
[[gnu::always_inline]] inline void row_block(const T* a, int64_t a_row, int64_t a_step,
                                             int64_t rows, const T* b, int64_t terms, int64_t count,
                                             T* to, int64_t pitch) {
  if (count < kStrip<T>) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t x = 0; x < count; ++x) {
        T total = 0;
        for (int64_t j = 0; j < terms; ++j)
          total += a[r * a_row + j * a_step] * b[j * kStrip<T> + x];
        to[r * pitch + x] = total;
      }
    return;
  }
  switch (rows) {
    case 6:
      return row_tile<T, 6>(a, a_row, a_step, b, terms, to, pitch);
    case 5:
      return row_tile<T, 5>(a, a_row, a_step, b, terms, to, pitch);
    case 4:
      return row_tile<T, 4>(a, a_row, a_step, b, terms, to, pitch);
    case 3:
      return row_tile<T, 3>(a, a_row, a_step, b, terms, to, pitch);
    case 2:
      return row_tile<T, 2>(a, a_row, a_step, b, terms, to, pitch);
    default:
      return row_tile<T, 1>(a, a_row, a_step, b, terms, to, pitch);
  }
}

// On its own, so that its accumulators stay in registers whatever is around a call.
template <class T>
[[gnu::noinline]] void row_sums(const T* a, int64_t a_row, int64_t a_step, int64_t rows, const T* b,
                                int64_t terms, int64_t count, T* to) {
  row_block<T>(a, a_row, a_step, rows, b, terms, count, to, kStrip<T>);
}

// Rows of `s` that are one and the same, as a constant Hessian has them, are multiplied once.
template <class T, bool kSquared>
void linear_input(const Context& context, Grid<T> out, Grid<const T> s, Grid<const T> weight,
                  Grid<const T> z, Activation activation, double slope) {
  constexpr int64_t kStretch = 4 * kStrip<T>;
  const int64_t features = out.size[2], samples = s.size[1];
  const bool same = s.stride[1] == 0;
  const int64_t rows = same ? 1 : samples, terms = weight.size[1];
  with_activation(activation, [&]<Activation kind>() {
    context.parallel_for(ceil_div(features, kStretch), [&](int64_t task) {
      alignas(64) T sums[kRowBlock * kStrip<T>];
      Scratch<T> strip(terms * kStrip<T>);
      const int64_t end = std::min(features, (task + 1) * kStretch);
      for (int64_t x = task * kStretch; x < end; x += kStrip<T>) {
        const int64_t width = std::min(kStrip<T>, end - x);
        for (int64_t o = 0; o < terms; ++o) {
          const T* from = weight.data + o * weight.stride[1] + x;
          T* to = strip.data() + o * kStrip<T>;
          for (int64_t q = 0; q < width; ++q) to[q] = kSquared ? from[q] * from[q] : from[q];
        }
        for (int64_t row = 0; row < rows; row += kRowBlock) {
          const int64_t block = std::min<int64_t>(kRowBlock, rows - row);
          row_sums<T>(s.data + row * s.stride[1], s.stride[1], s.stride[2], block, strip.data(),
                      terms, width, sums);
          const int64_t last = same ? samples : row + block;
          for (int64_t n = row; n < last; ++n)
            write_row<T, kind, kSquared>(out.data + n * out.stride[1] + x, 1, {0, 1},
                                         sums + (same ? 0 : n - row) * kStrip<T>,
                                         z.data + n * z.stride[1] + x, 1, width, T(slope));
        }
      }
    });
  });
}

// A block of rows of the result at a time, from left to right, as memory likes to be written.
// Strips of g(x) lie one after the other, all samples of a strip together.
template <class T, bool kSquared>
void linear_weight(const Context& context, Grid<T> out, Grid<const T> s, Grid<const T> x) {
  const int64_t rows = out.size[1], features = out.size[2];
  const bool same = s.stride[1] == 0;
  const int64_t terms = same ? 1 : x.size[1];
  Scratch<T> strips(terms * round_up(features, kStrip<T>));
  for (int64_t n = 0; n < x.size[1]; ++n)
    for (int64_t i = 0; i < features; i += kStrip<T>) {
      const T* from = x.data + n * x.stride[1] + i;
      T* to = strips.data() + i * terms + (same ? 0 : n) * kStrip<T>;
      const int64_t width = std::min(kStrip<T>, features - i);
      for (int64_t q = 0; q < width; ++q) to[q] += kSquared ? from[q] * from[q] : from[q];
    }
  context.parallel_for(ceil_div(rows, kRowBlock), [&](int64_t task) {
    const int64_t first = task * kRowBlock, block = std::min<int64_t>(kRowBlock, rows - first);
    const T* own = s.data + first * s.stride[2];
    for (int64_t i = 0; i < features; i += kStrip<T>)
      row_block<T>(own, s.stride[2], s.stride[1], block, strips.data() + i * terms, terms,
                   std::min(kStrip<T>, features - i), out.data + first * out.stride[1] + i,
                   out.stride[1]);
  });
}
