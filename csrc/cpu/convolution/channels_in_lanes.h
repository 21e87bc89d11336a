// The sums of a convolution (convolution/epilogue.h) with output channels in the lanes of vectors:
// for many of them.
//
// Values are broadcast from padded arrays. A tile is a few positions of a row times some vectors;
// its sums wait in a buffer while a block of weights that fits the first-level cache meets all rows
// of a slab. Where that saves much, taps go one by one, and not where they fall outside the source.
// Parallel over samples, groups and slabs of output rows.

// Whether there are three taps that follow each other.
inline bool has_threes(const Axis& x) {
  return x.taps.size() == 3 && x.phases.size() == 1 && x.length - x.positions == 2;
}

// Whether that is faster than rows: what either way takes for a product, as measured. Rows are read
// where they lie across lines of the cache, and from farther away the more sources there are; sums
// in lanes are turned at the end, however few terms they have.
template <class T>
bool prefers_lanes(const Convolution<T>& c, const OutputPhase& phase) {
  const int64_t width = std::max<int64_t>(1, phase.axes[2].positions), rows = c.rows();
  const double shifted = kVectorBytes == 64 ? 1.4 : 1.1, far = c.sources() >= 48 ? 1.2 : 1;
  const double by_rows = shifted * far * round_up(width, kWidth<T>) / width;
  const int64_t vectors = ceil_div(rows, kWidth<T>);
  const double one = kManyRegisters && has_threes(phase.axes[2]) ? 1.2 : 1.9;
  const double alone = vectors == 1 ? one : vectors == 2 ? 1.29 : 1.17;
  double terms = std::max<int64_t>(1, c.sources());
  for (int d = 0; d < 3; ++d) terms *= std::max<size_t>(1, phase.axes[d].taps.size());
  return (alone + 10 / terms) * vectors * kWidth<T> / rows < by_rows;
}

// sums[q][lane] (+)= sum_j sum_k w[j][k][lane] * x[offset_j + k + q] for Q positions, R vectors and
// runs of K taps, which share what they broadcast.
template <class T, int R, int K, int Q>
[[gnu::noinline]] void spread_tile(const T* __restrict w, const T* __restrict x,
                                   const int64_t* __restrict offsets, int64_t runs,
                                   T* __restrict sums, bool accumulate) {
  Reg<T> acc[Q][R] = {};
  int64_t j = 0;
  do {
    const T* at = x + offsets[j];
    Reg<T> rows[K][R];
    for (int k = 0; k < K; ++k)
      for (int r = 0; r < R; ++r) rows[k][r] = load(w + ((j * K + k) * R + r) * kWidth<T>);
#pragma GCC unroll 32
    for (int i = 0; i < Q + K - 1; ++i) {
      const Reg<T> value = broadcast(at[i]);
      for (int k = std::max(0, i - Q + 1); k < std::min(K, i + 1); ++k)
        for (int r = 0; r < R; ++r) acc[i - k][r] += value * rows[k][r];
    }
  } while (++j < runs);
#pragma GCC unroll 32
  for (int q = 0; q < Q; ++q)
    for (int r = 0; r < R; ++r) {
      T* sum = sums + (q * R + r) * kWidth<T>;
      store(sum, accumulate ? load(sum) + acc[q][r] : acc[q][r]);
    }
}

// Sums of a tile, and vectors of a panel, at most.
constexpr int kSpreadSums = kManyRegisters ? 24 : 12, kSpreadVectors = kManyRegisters ? 4 : 3;

// Tiles of so many vectors are so many positions wide, or a multiple of it.
constexpr int spread_unit(int64_t vectors) { return std::max<int>(1, kSpreadSums / 6 / vectors); }

// spread_tile for a row of any number of positions, in whole units, by tiles of nearly as many.
// What `ahead` has of the same positions is asked for meanwhile.
template <class T, int R, int K>
void spread_row(const T* w, const T* x, const int64_t* offsets, int64_t runs, T* sums,
                int64_t count, bool accumulate, const MaskedRows<T>& ahead) {
  constexpr int kUnit = spread_unit(R);
  static constexpr auto tiles = []<int... q>(std::integer_sequence<int, q...>) {
    return std::array{&spread_tile<T, R, K, (q + 1) * kUnit>...};
  }(std::make_integer_sequence<int, kSpreadSums / (R * kUnit)>{});
  int64_t units = ceil_div(count, kUnit);
  const T* const begin = x;
  for (int64_t left = ceil_div(units, tiles.size()); left > 0; --left) {
    const int64_t some = ceil_div(units, left), positions = some * kUnit;
    ahead.fetch(R * kWidth<T>, x - begin, x - begin + positions);
    tiles[some - 1](w, x, offsets, runs, sums, accumulate);
    x += positions;
    sums += positions * R * kWidth<T>;
    units -= some;
  }
}

// Output channels [first, first + vectors * kWidth) of a group.
struct Panel {
  int64_t first, vectors;
};

// The order in which runs of taps and sources are added: blocks of them, of which each meets all
// rows of a slab.
struct Terms {
  struct Block {
    int64_t first, runs, s0, s1;  // of the runs, and sources [s0, s1)
    int64_t begin;                // where its terms are
    int64_t count() const { return runs * (s1 - s0); }
    int64_t term(int64_t run, int64_t s) const {
      return begin + (run - first) * (s1 - s0) + s - s0;
    }
  };

  int64_t length;                                 // of a run
  std::vector<std::pair<int64_t, int64_t>> taps;  // offset and index, run after run
  std::vector<Block> blocks;
  std::vector<int64_t> offsets;  // of every term

  // Runs of taps that follow each other: all in a block, of no more than `most` taps and sources,
  // or each `alone`.
  Terms(const Planes& p, const int64_t kernel[3], int64_t length_, int64_t sources, bool alone,
        int64_t most)
      : length(length_), taps(p.tap_offsets(kernel)) {
    for (auto at = taps.begin(); at != taps.end(); at += length) std::sort(at, at + length);
    const int64_t runs = taps.size() / length, together = alone ? 1 : runs;
    const int64_t parts =
        ceil_div(sources, std::max<int64_t>(1, most / std::max<int64_t>(1, together * length)));
    for (int64_t first = 0, begin = 0; first < runs; first += together)
      for (int64_t part = 0; part < parts; ++part) {
        blocks.push_back(
            {first, together, sources * part / parts, sources * (part + 1) / parts, begin});
        begin += blocks.back().count();
      }
    offsets.resize(runs * sources);
    for (const Block& block : blocks)
      for (int64_t run = block.first; run < block.first + block.runs; ++run)
        for (int64_t s = block.s0; s < block.s1; ++s)
          offsets[block.term(run, s)] = s * p.phases * p.plane + taps[run * length].first;
  }
};

// Writes sums [position][lane] of some channels from u on, `pitch` apart, into rows of the result.
template <class T>
void write_turned(const Result<T>& result, int64_t n, int64_t channel, int64_t channels,
                  const std::array<int64_t, 3>& u, int64_t step, const T* sums, int64_t pitch,
                  int64_t count, T* turned) {
  const MaskedRows<T> rows = result.direct(n, channel, u, step);
  if (!rows.data || count < kWidth<T>) {
    const int64_t line = round_up(count, kWidth<T>);
    interleave(turned, line, sums, 1, pitch, count, round_up(channels, kWidth<T>));
    for (int64_t c = 0; c < channels; ++c)
      result.write(n, channel + c, u, step, turned + c * line, count);
    return;
  }
  const Reg<T> one = broadcast(T(1));
  for (int64_t next = 0; next < count; next += kWidth<T>) {
    // The last vector of a row overlaps the one before it.
    const int64_t x = std::min<int64_t>(next, count - kWidth<T>);
    for (int64_t c = 0; c < channels; c += kPart<T>) {
      Reg<T> out[kPart<T>];
      turn_rows(sums + x * pitch + c, pitch, out);
      for (int64_t i = 0; i < std::min<int64_t>(kPart<T>, channels - c); ++i) {
        Reg<T> value = out[i];
        if (rows.mask)
          value *= load(rows.mask + (c + i) * rows.mask_pitch + x) > 0 ? one : Reg<T>{};
        store(rows.data + (c + i) * rows.pitch + x, value);
      }
    }
  }
}

template <class T>
void convolve_by_lanes(const Context& context, const Convolution<T>& c, const OutputPhase& phase) {
  constexpr int64_t kSumsBytes = 64 << 10, kBlockBytes = 32 << 10;
  const int64_t sources = c.sources(), rows = c.rows(), groups = c.taps.groups;
  // A row that is one tile only if its panels are narrower has these.
  const int64_t row_sums = phase.axes[2].positions * (kSpreadVectors - 1);
  const bool narrower = row_sums + phase.axes[2].positions > kSpreadSums && row_sums <= kSpreadSums;
  const int64_t most_vectors = kSpreadVectors - narrower;
  std::vector<Panel> panels;
  for (int64_t r = 0; r < rows; r += panels.back().vectors * kWidth<T>) {
    const int64_t left = ceil_div(rows - r, kWidth<T>);
    panels.push_back({r, ceil_div(left, ceil_div(left, most_vectors))});
  }
  const int64_t lanes = round_up(rows, kWidth<T>), widest = panels[0].vectors * kWidth<T>;
  const Planes p = stream_planes(context, c, phase, kSumsBytes / (widest * sizeof(T)));

  // Taps go one by one where much of what they read is outside the source. Panels of one vector
  // would wait for what is broadcast if taps did not share it.
  const bool alone = p.within(0) * p.within(1) * p.within(2) < 0.95;
  const int64_t most = kBlockBytes / (widest * sizeof(T));
  const Terms single(p, c.taps.kernel, 1, sources, alone, most);
  std::optional<Terms> threes;
  if (kManyRegisters && panels.back().vectors == 1 && has_threes(p.axes[2]))
    threes.emplace(p, c.taps.kernel, 3, sources, alone, most);
  auto terms_of = [&](const Panel& panel) -> const Terms& {
    return panel.vectors == 1 && threes ? *threes : single;
  };
  const int64_t terms = single.taps.size() * sources, pitch = p.phases * p.plane;

  // weights[stream][group][panel][term][lane]
  const int64_t of_group = lanes * terms, of_stream = groups * of_group;
  Scratch<T> weights(c.streams.size() * of_stream, c.streams.size() * of_stream);
  auto pack = [&](int64_t stream, int64_t group, const Panel& panel, int64_t s, T* whole) {
    const int64_t width = panel.vectors * kWidth<T>, *kernel = c.taps.kernel;
    const int64_t count = std::min(width, rows - panel.first), *stride = c.weight.stride;
    const T* from = c.weights(group, panel.first) + s * c.source_stride();
    // The taps of this source, [tap][lane].
    int64_t kx = kernel[2], ky = kernel[1];
    if (stride[4] == kx * stride[5]) kx *= std::exchange(ky, 1);
    for (int64_t z = 0; z < kernel[0]; ++z)
      interleave(whole + z * ky * kx * width, width, from + z * stride[3], stride[5],
                 c.row_stride(), count, kx, {ky, kx * width, stride[4]});
    T* to = weights.data() + stream * of_stream + group * of_group + panel.first * terms;
    const Terms& order = terms_of(panel);
    for (const auto& block : order.blocks)
      for (int64_t run = block.first; run < block.first + block.runs; ++run)
        for (int64_t k = 0; k < order.length && s >= block.s0 && s < block.s1; ++k) {
          T* line = to + (block.term(run, s) * order.length + k) * width;
          const T* tap = whole + order.taps[run * order.length + k].second * width;
          for (int64_t lane = 0; lane < width; lane += kWidth<T>) {
            const Reg<T> w = load(tap + lane);
            store(line + lane, c.streams[stream].squared ? w * w : w);
          }
        }
  };
  constexpr int64_t kSources = 16;
  const int64_t count = panels.size(), parts = ceil_div(sources, kSources);
  context.parallel_for(c.streams.size() * groups * count * parts, [&](int64_t task) {
    const int64_t part = task % parts, panel = task / parts % count;
    const int64_t group = task / parts / count % groups, stream = task / parts / count / groups;
    Scratch<T> whole(c.taps.kernel[0] * c.taps.kernel[1] * c.taps.kernel[2] *
                     panels[panel].vectors * kWidth<T>);
    for (int64_t s = part * kSources; s < std::min(sources, (part + 1) * kSources); ++s)
      pack(stream, group, panels[panel], s, whole.data());
  });

  const int64_t slabs = p.slabs();
  context.parallel_for(c.out().size[1] * groups * slabs, [&](int64_t task) {
    const int64_t slab = task % slabs, g = task / slabs % groups, n = task / slabs / groups;
    const int64_t nz = p.count(0, slab), ny = p.count(1, slab), nx = p.count(2, slab);
    const int64_t room = round_up(nz * ny * round_up(nx, spread_unit(1)), kWidth<T>) * widest;
    Scratch<T> arrays(sources * pitch, sources * pitch), sums(room, room), turned(room, room);
    for (size_t k = 0; k < c.streams.size(); ++k) {
      const Result<T>& result = c.streams[k].result;
      fill_planes<T>(arrays.data(), p, slab, c.streams[k].m, 0, n, g * sources, (g + 1) * sources,
                     Identity{});
      for (const Panel& panel : panels) {
        const auto& [first, vectors] = panel;
        const int64_t width = vectors * kWidth<T>;
        // Rows of sums are whole units.
        const int64_t row = round_up(nx, spread_unit(vectors)), positions = nz * ny * row;
        const T* packed = weights.data() + k * of_stream + g * of_group + first * terms;
        if (alone || terms == 0) std::fill_n(sums.data(), positions * width, T(0));
        const Terms& order = terms_of(panel);
        constexpr int kRun = kManyRegisters ? 3 : 1;
        const auto spread = order.length > 1 ? &spread_row<T, 1, kRun>
                            : vectors == 1   ? &spread_row<T, 1, 1>
                            : vectors == 2   ? &spread_row<T, 2, 1>
                            : vectors == 3   ? &spread_row<T, 3, 1>
                                             : &spread_row<T, kSpreadVectors, 1>;
        for (const auto& block : order.blocks) {
          std::pair<int64_t, int64_t> in_z{0, nz}, in_y{0, ny}, in_x{0, nx};
          if (alone) {
            const int64_t tx = p.axes[2].taps.size() / order.length, ty = p.axes[1].taps.size();
            in_z = p.inside(0, block.first / tx / ty, slab);
            in_y = p.inside(1, block.first / tx % ty, slab);
            // Units of several positions would add to sums beyond the last one.
            if (spread_unit(vectors) == 1) in_x = p.inside(2, block.first % tx, slab);
          }
          const bool last = &block == &order.blocks.back();
          for (int64_t z = in_z.first; z < in_z.second; ++z)
            for (int64_t y = in_y.first; y < in_y.second; ++y)
              spread(packed + block.begin * order.length * width,
                     arrays.data() + p.row(z, y) + in_x.first, order.offsets.data() + block.begin,
                     block.count(), sums.data() + ((z * ny + y) * row + in_x.first) * width,
                     in_x.second - in_x.first, alone || block.s0 > 0,
                     last ? result.direct(n, g * rows + first, phase.output(p, slab, z, y),
                                          phase.step[2])
                          : MaskedRows<T>{});
        }
        const bool one =
            row == nx && phase.step[1] == 1 && phase.step[2] == 1 && result.rows_are_one(nx);
        for (int64_t z = 0; z < nz; ++z)
          for (int64_t y = 0; y < (one ? 1 : ny); ++y)
            write_turned(result, n, g * rows + first, std::min(width, rows - first),
                         phase.output(p, slab, z, y), phase.step[2],
                         sums.data() + (z * ny + y) * row * width, width, one ? ny * nx : nx,
                         turned.data());
      }
    }
  });
}
