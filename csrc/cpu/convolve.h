// The sums of a convolution with f(W) = W or W², towards a layer's input or, transposed, its
// output, of one tensor m or of several that go through the same layer. Included by isa_kernels.h
// inside namespace lapkernels::LAPKERNELS_ISA.
//
//   conv:        out[b, u] = sum_{a, k, t} f(W[a, b, k]) m[a, t],  t stride - padding + k dilation
//   = u transposed:  out[a, t] = sum_{b, k} f(W[a, b, k]) m[b, t stride - padding + k dilation]
//
// The second gathers from arrays in which every tap is an offset (planes.h). The first is as many
// such gathers as the stride has phases: outputs of one phase read m through the same taps.
// Parallel over samples, groups and slabs of output rows; every row of the result is made once,
// and its memory fetched while its sums are made.

// The axis of one phase of a convolution's input: u = t * stride + phase reads m[t + shift].
inline Axis scatter_axis(const Taps& taps, int d, int64_t phase, int64_t inputs, int64_t source) {
  std::vector<int64_t> shifts, indices;
  for (int64_t k = 0; k < taps.kernel[d]; ++k) {
    const int64_t distance = phase + taps.padding[d] - k * taps.dilation[d];
    if (distance % taps.stride[d] == 0) {
      shifts.push_back(distance / taps.stride[d]);
      indices.push_back(k);
    }
  }
  return Axis(ceil_div(inputs - phase, taps.stride[d]), source, 1, shifts, indices);
}

// f(W) of `rows` output channels from row r0 on, term by term: [terms][rows].
template <class T>
void pack_weights(T* to, const Grid<const T>& weight, const std::vector<int64_t>& taps,
                  int64_t sources, int64_t first_source, int64_t r0, int64_t rows,
                  int64_t source_stride, int64_t row_stride, const int64_t kernel[3],
                  bool squared) {
  for (int64_t c = 0; c < sources; ++c)
    for (int64_t tap : taps) {
      const int64_t x = tap % kernel[2], y = tap / kernel[2] % kernel[1];
      const int64_t z = tap / kernel[2] / kernel[1];
      const T* w = weight.data + (first_source + c) * source_stride + z * weight.stride[3] +
                   y * weight.stride[4] + x * weight.stride[5];
      for (int64_t r = 0; r < rows; ++r, ++to) {
        const T value = w[(r0 + r) * row_stride];
        *to = squared ? value * value : value;
      }
    }
}

// Output channels at a time, at most: tiles of 4 x 3 vectors or 6 x 2, whichever fills a row of
// `count` entries; with many registers of 4 x 6.
constexpr int64_t kMostRows = 6;
template <class T>
int64_t block_height(int64_t count) {
  const int64_t vectors = ceil_div(count, kWidth<T>);
  return kManyRegisters || vectors % 2 == 1 || vectors % 3 == 0 ? 4 : kMostRows;
}

// Those of the next block when so many are left: a rest of one or two is shared with the last one.
inline int64_t next_block(int64_t left, int64_t height) {
  return left > height && left < height + 3 ? ceil_div(left, 2) : std::min(left, height);
}

// Rows that will be read or written where sums are due: asked for a tile at a time, as more at once
// would wait for each other.
template <class T>
struct Fetch {
  const T* rows[2 * kMostRows];
  int64_t count = 0;

  void add(const T* row, int64_t step) {
    if (step == 1) rows[count++] = row;
  }
  void operator()(int64_t begin, int64_t end) const {
    asm volatile("");  // or GCC leaves out calls of a function that only fetches
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t x = begin; x < end; x += kLine) __builtin_prefetch(rows[i] + x);
  }
};

// Rows of results, `pitch` apart, and a mask: what is not positive there makes a result zero.
template <class T>
struct MaskedRows {
  T* data = nullptr;
  int64_t pitch = 0;
  const T* mask = nullptr;
  int64_t mask_pitch = 0;
};

// One row of R output channels, by as many vectors as fit the registers, and twos. Whole vectors go
// to `direct`, if it is given, and all else to `line`; returns how many entries have gone there.
template <class T, int R>
int64_t axpy_row(const T* b, const int64_t* offsets, int64_t terms, const T* w, int64_t count,
                 T* line, int64_t pitch, const MaskedRows<T>& direct, const Fetch<T>& fetch) {
  // Sums, the vectors they take and a weight are in registers at once.
  constexpr int Wide = R == 1 ? 8 : kManyRegisters ? 6 : R == 2 ? 5 : R <= 4 ? 3 : 2;
  int64_t vectors = ceil_div(count, kWidth<T>), q = 0, done = 0;
  auto strip = [&]<int C>() {
    constexpr int64_t kSpan = C * kWidth<T>;
    if (direct.data && q + kSpan <= count) {
      axpy_tile<T, R, C>(b + q, offsets, terms, w, direct.data + q, direct.pitch,
                         direct.mask ? direct.mask + q : nullptr, direct.mask_pitch);
      done = q + kSpan;
    } else {
      fetch(q, q + kSpan);
      axpy_tile<T, R, C>(b + q, offsets, terms, w, line + q, pitch, nullptr, 0);
    }
    q += kSpan;
    vectors -= C;
  };
  while (vectors >= Wide && vectors != Wide + 1) strip.template operator()<Wide>();
  while (vectors >= 2) strip.template operator()<2>();
  if (vectors == 1) strip.template operator()<1>();
  return done;
}

template <class T>
using AxpyRow = int64_t (*)(const T*, const int64_t*, int64_t, const T*, int64_t, T*, int64_t,
                            const MaskedRows<T>&, const Fetch<T>&);
template <class T>
constexpr AxpyRow<T> axpy_rows[kMostRows] = {axpy_row<T, 1>, axpy_row<T, 2>, axpy_row<T, 3>,
                                             axpy_row<T, 4>, axpy_row<T, 5>, axpy_row<T, 6>};

// Where sample n and channel c of a grid have the position u.
template <class G>
auto* place(const G& grid, int64_t n, int64_t c, const int64_t u[3]) {
  return grid.data + n * grid.stride[1] + c * grid.stride[2] + u[0] * grid.stride[3] +
         u[1] * grid.stride[4] + u[2] * grid.stride[5];
}

// out <- decay * out + scale * (value + shift) * phi'(z) along a row, or with phi'(z)^2.
template <class T, Activation kind, bool kSquared>
void write_row(T* out, int64_t stride, Update update, const T* value, const T* z, int64_t z_stride,
               int64_t count, T slope, T shift = 0) {
  const T decay = update.decay, scale = update.scale;
  auto body = [&](int64_t step, int64_t z_step, auto keep) {
    for (int64_t x = 0; x < count; ++x) {
      T result = scale * (value[x] + shift);
      if constexpr (kind != Activation::identity)
        result *= kSquared ? squared_slope<T, kind>(z[x * z_step], slope)
                           : derivative<T, kind>(z[x * z_step], slope);
      if constexpr (keep) result += decay * out[x * step];
      out[x * step] = result;
    }
  };
  const bool dense = stride == 1 && (kind == Activation::identity || z_stride == 1);
  if (update.decay == 0)
    dense ? body(1, 1, std::false_type{}) : body(stride, z_stride, std::false_type{});
  else
    dense ? body(1, 1, std::true_type{}) : body(stride, z_stride, std::true_type{});
}

// What becomes of the sums: out <- decay * out + scale * (sum + bias) * phi'(z), or phi'(z)^2.
template <class T>
struct Result {
  Grid<T> out;
  Update update;
  const T* bias;    // one a channel, or null
  Grid<const T> z;  // not read without an activation
  T slope;
  bool has_slopes;
  bool is_mask;  // the sums themselves, or zeros where z is not positive
  decltype(&write_row<T, Activation::identity, true>) put;

  // values[x] belongs to channel c at u + x * step along the last axis.
  void write(int64_t n, int64_t c, const int64_t u[3], int64_t step, const T* values,
             int64_t count) const {
    put(place(out, n, c, u), out.stride[5] * step, update, values,
        has_slopes ? place(z, n, c, u) : nullptr, z.stride[5] * step, count, slope,
        bias ? bias[c] : T(0));
  }

  // Where sums of channels from c on can be stored as they are made: along rows of steps of `step`.
  MaskedRows<T> direct(int64_t n, int64_t c, const int64_t u[3], int64_t step) const {
    if (!is_mask || out.stride[5] * step != 1 || (has_slopes && z.stride[5] * step != 1)) return {};
    return {place(out, n, c, u), out.stride[2], has_slopes ? place(z, n, c, u) : nullptr,
            z.stride[2]};
  }

  // What write() will touch of channels [c, c + block).
  Fetch<T> fetch(int64_t n, int64_t c, int64_t block, const int64_t u[3], int64_t step) const {
    Fetch<T> found;
    for (int64_t i = 0; i < block; ++i) {
      found.add(place(out, n, c + i, u), out.stride[5] * step);
      if (has_slopes) found.add(place(z, n, c + i, u), z.stride[5] * step);
    }
    return found;
  }
};

template <class T, bool kSquared>
Result<T> result_of(const Grid<T>& out, Update update, const T* bias, const Grid<const T>& z,
                    Activation activation, double slope) {
  const bool has_slopes = activation != Activation::identity;
  const bool is_mask = (!has_slopes || activation == Activation::relu) && !bias &&
                       update.decay == 0 && update.scale == 1;
  Result<T> result{out, update, bias, z, T(slope), has_slopes, is_mask, nullptr};
  with_activation(activation,
                  [&]<Activation kind>() { result.put = &write_row<T, kind, kSquared>; });
  return result;
}

// What goes through a layer, by W or by W², and what becomes of it. Several have the same sizes.
template <class T>
struct Stream {
  Grid<const T> m;
  Result<T> result;
  bool squared;
};

template <class T>
void convolve(const Context& context, std::span<const Stream<T>> streams,
              const Grid<const T>& weight, const Taps& taps, bool transposed) {
  constexpr int64_t kPlaneBytes = 192 << 10, kLine = 12 * kWidth<T>, kFewest = 256;
  const Grid<T>& out = streams[0].result.out;
  const Grid<const T>& m = streams[0].m;
  const int64_t sources = m.size[2] / taps.groups, rows = out.size[2] / taps.groups;
  // Weight [A, B / groups, k]: the output is b of the group's a for a convolution, else a.
  const int64_t source_stride = transposed ? weight.stride[2] : weight.stride[1];
  const int64_t row_stride = transposed ? weight.stride[1] : weight.stride[2];
  int64_t phases[3], steps[3];
  for (int d = 0; d < 3; ++d) {
    phases[d] = transposed ? 1 : std::min(taps.stride[d], out.size[3 + d]);
    steps[d] = transposed ? 1 : taps.stride[d];
  }
  for (int64_t phase = 0; phase < phases[0] * phases[1] * phases[2]; ++phase) {
    const int64_t at[3] = {phase / phases[2] / phases[1], phase / phases[2] % phases[1],
                           phase % phases[2]};
    auto axis = [&](int d) {
      return transposed ? gather_axis(taps, d, out.size[3 + d], m.size[3 + d])
                        : scatter_axis(taps, d, at[d], out.size[3 + d], m.size[3 + d]);
    };
    const std::array<Axis, 3> axes{axis(0), axis(1), axis(2)};
    // Slabs so small that every thread gets several.
    const int64_t positions = axes[0].positions * axes[1].positions * axes[2].positions;
    const int64_t share = out.size[1] * taps.groups * positions / (4 * context.threads);
    const Planes p = Planes::make<T>(axes, sources, kPlaneBytes, std::max(share, kFewest));
    std::vector<int64_t> offsets, indices;
    const auto tap_offsets = p.tap_offsets(taps.kernel);
    for (int64_t c = 0; c < sources; ++c)
      for (const auto& [offset, index] : tap_offsets)
        offsets.push_back(c * p.phases * p.plane + offset);
    for (const auto& [offset, index] : tap_offsets) indices.push_back(index);
    const int64_t terms = offsets.size();
    // Rows with too few sums to hide their latency go together, with what lies between them.
    const int64_t width = p.count(2, 0);
    const bool is_short = std::min<int64_t>(4, rows) * ceil_div(width, kWidth<T>) < 8;
    const int64_t together =
        is_short ? std::clamp<int64_t>(kLine / p.lengths[2], 1, p.count(1, 0)) : 1;
    const int64_t longest = (together - 1) * p.lengths[2] + width;
    const int64_t height = block_height<T>(longest), pitch = round_up(longest, kWidth<T>);
    // Weights of each stream and all groups, blocks of channels one after another.
    const int64_t of_stream = taps.groups * rows * terms;
    Scratch<T> weights(streams.size() * of_stream);
    for (size_t k = 0; k < streams.size(); ++k)
      for (int64_t g = 0; g < taps.groups; ++g)
        for (int64_t r = 0, block; r < rows; r += block) {
          block = next_block(rows - r, height);
          const int64_t first_source = transposed ? 0 : g * sources;
          const int64_t first_row = transposed ? g * rows + r : r;
          pack_weights<T>(weights.data() + k * of_stream + (g * rows + r) * terms, weight, indices,
                          sources, first_source, first_row, block, source_stride, row_stride,
                          taps.kernel, streams[k].squared);
        }
    const int64_t slabs = p.slabs();
    context.parallel_for(out.size[1] * taps.groups * slabs, [&](int64_t task) {
      const int64_t slab = task % slabs, g = task / slabs % taps.groups;
      const int64_t n = task / slabs / taps.groups;
      const int64_t filled = sources * p.phases * p.plane;
      Scratch<T> arrays(filled, filled);
      const int64_t nz = p.count(0, slab), ny = p.count(1, slab), nx = p.count(2, slab);
      Scratch<T> line(height * pitch);
      for (size_t k = 0; k < streams.size(); ++k) {
        const Result<T>& result = streams[k].result;
        fill_planes<T>(arrays.data(), p, slab, streams[k].m, 0, n, g * sources, (g + 1) * sources,
                       Identity{});
        for (int64_t iz = 0; iz < nz; ++iz)
          for (int64_t iy = 0; iy < ny; iy += together)
            for (int64_t r = 0, block; r < rows; r += block) {
              block = next_block(rows - r, height);
              const int64_t lines = std::min(together, ny - iy), c = g * rows + r;
              int64_t u[3] = {(p.begin(0, slab) + iz) * steps[0] + at[0],
                              (p.begin(1, slab) + iy) * steps[1] + at[1],
                              p.begin(2, slab) * steps[2] + at[2]};
              const T* packed = weights.data() + k * of_stream + c * terms;
              const int64_t count = (lines - 1) * p.lengths[2] + nx;
              const auto direct = lines == 1 ? result.direct(n, c, u, steps[2]) : MaskedRows<T>{};
              int64_t done = 0;
              if (terms > 0)
                done = axpy_rows<T>[block - 1](
                    arrays.data() + p.row(iz, iy), offsets.data(), terms, packed, count,
                    line.data(), pitch, direct,
                    direct.data ? Fetch<T>{} : result.fetch(n, c, block, u, steps[2]));
              if (done == nx) continue;
              u[2] += done * steps[2];
              for (int64_t y = 0; y < lines; ++y, u[1] += steps[1])
                for (int64_t i = 0; i < block; ++i)
                  result.write(n, c + i, u, steps[2],
                               line.data() + i * pitch + y * p.lengths[2] + done, nx - done);
            }
      }
    });
  }
}
