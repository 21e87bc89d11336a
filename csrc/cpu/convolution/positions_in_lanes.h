// The sums of a convolution (convolution/epilogue.h) with positions in the lanes of vectors: for
// few output channels.
//
// Parallel over samples, groups and slabs of output rows; every row of the result is made once, and
// its memory fetched while its sums are made.

// f(W) of `rows` output channels from row r0 on, term by term: [terms][rows].
template <class T>
void pack_weights(T* to, const Convolution<T>& c, int64_t group, int64_t r0, int64_t rows,
                  const std::vector<int64_t>& taps, bool squared) {
  const int64_t* kernel = c.taps.kernel;
  const int64_t* stride = c.weight.stride;
  for (int64_t s = 0; s < c.sources(); ++s)
    for (int64_t tap : taps) {
      const int64_t x = tap % kernel[2], y = tap / kernel[2] % kernel[1];
      const int64_t z = tap / kernel[2] / kernel[1];
      const T* w = c.weights(group, r0) + s * c.source_stride() + z * stride[3] + y * stride[4] +
                   x * stride[5];
      for (int64_t r = 0; r < rows; ++r, ++to) {
        const T value = w[r * c.row_stride()];
        *to = squared ? value * value : value;
      }
    }
}

// Output channels at a time, at most: tiles of 4 x 3 vectors or 6 x 2, whichever fills a row of
// `count` entries; with many registers of 4 x 6.
template <class T>
int64_t block_height(int64_t count) {
  const int64_t vectors = ceil_div(count, kWidth<T>);
  return kManyRegisters || vectors % 2 == 1 || vectors % 3 == 0 ? 4 : kMostRows;
}

// Those of the next block when so many are left: a rest of one or two is shared with the last one.
inline int64_t next_block(int64_t left, int64_t height) {
  return left > height && left < height + 3 ? ceil_div(left, 2) : std::min(left, height);
}

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

template <class T>
void convolve_by_rows(const Context& context, const Convolution<T>& c, const OutputPhase& phase) {
  constexpr int64_t kLine = 12 * kWidth<T>;
  const int64_t sources = c.sources(), rows = c.rows(), groups = c.taps.groups;
  const int64_t step = phase.step[2];
  const Planes p = stream_planes(context, c, phase, phase.positions());
  std::vector<int64_t> offsets, indices;
  const auto tap_offsets = p.tap_offsets(c.taps.kernel);
  for (int64_t s = 0; s < sources; ++s)
    for (const auto& [offset, index] : tap_offsets)
      offsets.push_back(s * p.phases * p.plane + offset);
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
  const int64_t of_stream = groups * rows * terms;
  Scratch<T> weights(c.streams.size() * of_stream);
  for (size_t k = 0; k < c.streams.size(); ++k)
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t r = 0, block; r < rows; r += block) {
        block = next_block(rows - r, height);
        pack_weights<T>(weights.data() + k * of_stream + (g * rows + r) * terms, c, g, r, block,
                        indices, c.streams[k].squared);
      }
  const int64_t slabs = p.slabs();
  context.parallel_for(c.out().size[1] * groups * slabs, [&](int64_t task) {
    const int64_t slab = task % slabs, g = task / slabs % groups, n = task / slabs / groups;
    const int64_t filled = sources * p.phases * p.plane;
    Scratch<T> arrays(filled, filled);
    const int64_t nz = p.count(0, slab), ny = p.count(1, slab), nx = p.count(2, slab);
    Scratch<T> line(height * pitch);
    for (size_t k = 0; k < c.streams.size(); ++k) {
      const Result<T>& result = c.streams[k].result;
      fill_planes<T>(arrays.data(), p, slab, c.streams[k].m, 0, n, g * sources, (g + 1) * sources,
                     Identity{});
      for (int64_t z = 0; z < nz; ++z)
        for (int64_t y = 0; y < ny; y += together)
          for (int64_t r = 0, block; r < rows; r += block) {
            block = next_block(rows - r, height);
            const int64_t lines = std::min(together, ny - y), channel = g * rows + r;
            auto u = phase.output(p, slab, z, y);
            const T* packed = weights.data() + k * of_stream + channel * terms;
            const int64_t count = (lines - 1) * p.lengths[2] + nx;
            const auto direct = lines == 1 ? result.direct(n, channel, u, step) : MaskedRows<T>{};
            int64_t done = 0;
            if (terms > 0)
              done = axpy_rows<T>[block - 1](
                  arrays.data() + p.row(z, y), offsets.data(), terms, packed, count, line.data(),
                  pitch, direct,
                  direct.data ? Fetch<T>{} : result.fetch(n, channel, block, u, step));
            if (done == nx) continue;
            u[2] += done * step;
            for (int64_t i = 0; i < lines; ++i, u[1] += phase.step[1])
              for (int64_t b = 0; b < block; ++b)
                result.write(n, channel + b, u, step,
                             line.data() + b * pitch + i * p.lengths[2] + done, nx - done);
          }
    }
  });
}
