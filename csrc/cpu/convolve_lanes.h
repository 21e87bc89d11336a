// The sums of a convolution (conv_streams.h) with output channels in the lanes of vectors: for many
// of them. Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// Values are broadcast from padded arrays, weights lie as [row of taps][source][tap][lane]. A tile
// is a few positions of a row times some vectors; its sums wait in a buffer while a block of
// weights that fits the first-level cache meets all rows of a slab. Rows of taps that fall outside
// the source are left out. Parallel over samples, groups and slabs of output rows.

// Whether that is faster than rows: what either way takes for a product, as measured. Rows are read
// where they lie across lines of the cache, and from farther away the more sources there are.
template <class T>
bool prefers_lanes(const Convolution<T>& c, const OutputPhase& phase) {
  const int64_t width = std::max<int64_t>(1, phase.axes[2].positions), rows = c.rows();
  const double shifted = kVectorBytes == 64 ? 1.4 : 1.1, far = c.sources() >= 48 ? 1.2 : 1;
  const double by_rows = shifted * far * round_up(width, kWidth<T>) / width;
  const int64_t vectors = ceil_div(rows, kWidth<T>);
  const double alone = vectors == 1 ? 1.9 : vectors == 2 ? 1.29 : 1.17;
  return alone * vectors * kWidth<T> / rows < by_rows;
}

// sums[q][lane] += sum_j w[j][lane] * x[j * pitch + q] for Q positions and R vectors.
template <class T, int R, int Q>
[[gnu::noinline]] void spread_tile(const T* __restrict w, const T* __restrict x, int64_t pitch,
                                   int64_t terms, T* __restrict sums) {
  Reg<T> acc[Q][R] = {};
  int64_t j = 0;
  do {
    Reg<T> rows[R];
    for (int r = 0; r < R; ++r) rows[r] = load(w + (j * R + r) * kWidth<T>);
    for (int q = 0; q < Q; ++q) {
      const Reg<T> value = broadcast(x[q]);
      for (int r = 0; r < R; ++r) acc[q][r] += value * rows[r];
    }
    x += pitch;
  } while (++j < terms);
  for (int q = 0; q < Q; ++q)
    for (int r = 0; r < R; ++r) {
      T* sum = sums + (q * R + r) * kWidth<T>;
      store(sum, load(sum) + acc[q][r]);
    }
}

// spread_tile for a row of any number of positions, by tiles of nearly as many.
template <class T, int R>
void spread_row(const T* w, const T* x, int64_t pitch, int64_t terms, T* sums, int64_t count) {
  constexpr int kMost = kManyRegisters && R == 1 ? 12 : 6;
  static constexpr auto tiles = []<int... q>(std::integer_sequence<int, q...>) {
    return std::array{&spread_tile<T, R, q + 1>...};
  }(std::make_integer_sequence<int, kMost>{});
  for (int64_t left = ceil_div(count, kMost); left > 0; --left) {
    const int64_t some = ceil_div(count, left);
    tiles[some - 1](w, x, pitch, terms, sums);
    x += some;
    sums += some * R * kWidth<T>;
    count -= some;
  }
}

// Output channels [first, first + vectors * kWidth) of a group.
struct Panel {
  int64_t first, vectors;
};

template <class T>
void convolve_by_lanes(const Context& context, const Convolution<T>& c, const OutputPhase& phase) {
  constexpr int64_t kSlabPositions = 256, kBlockBytes = 16 << 10;
  const int64_t sources = c.sources(), rows = c.rows(), groups = c.taps.groups;
  const Planes p = stream_planes(context, c, phase, kSlabPositions);
  std::vector<Panel> panels;
  for (int64_t r = 0; r < rows; r += panels.back().vectors * kWidth<T>) {
    const int64_t left = ceil_div(rows - r, kWidth<T>);
    panels.push_back({r, kManyRegisters && left >= 4 ? 4 : left >= 2 ? 2 : 1});
  }
  const int64_t lanes = round_up(rows, kWidth<T>);

  const auto taps = p.tap_offsets(c.taps.kernel);
  const int64_t terms = taps.size() * sources, pitch = p.phases * p.plane;

  // weights[stream][group][panel][tap][source][lane]
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
    for (size_t i = 0; i < taps.size(); ++i) {
      T* line = to + (i * sources + s) * width;
      const T* tap = whole + taps[i].second * width;
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
    const int64_t positions = p.positions(slab), line = round_up(positions, kWidth<T>);
    const int64_t most = std::min<int64_t>(lanes, 4 * kWidth<T>);
    Scratch<T> arrays(sources * pitch, sources * pitch), sums(positions * most, positions * most);
    Scratch<T> turned(line * most, line * most);
    for (size_t k = 0; k < c.streams.size(); ++k) {
      const Result<T>& result = c.streams[k].result;
      fill_planes<T>(arrays.data(), p, slab, c.streams[k].m, 0, n, g * sources, (g + 1) * sources,
                     Identity{});
      for (const auto& [first, vectors] : panels) {
        const int64_t width = vectors * kWidth<T>;
        const T* packed = weights.data() + k * of_stream + g * of_group + first * terms;
        std::fill_n(sums.data(), positions * width, T(0));
        const auto spread = vectors == 1   ? &spread_row<T, 1>
                            : vectors == 2 ? &spread_row<T, 2>
                                           : &spread_row < T,
                   kManyRegisters ? 4 : 2 > ;
        const int64_t block = kBlockBytes / (width * sizeof(T));
        for (size_t i = 0; i < taps.size(); ++i) {
          const int64_t tx = p.axes[2].taps.size(), ty = p.axes[1].taps.size();
          const auto [front, back] = p.inside(0, i / tx / ty, slab);
          const auto [top, bottom] = p.inside(1, i / tx % ty, slab);
          const auto [left, right] = p.inside(2, i % tx, slab);
          for (int64_t s = 0; s < sources; s += block)
            for (int64_t z = front; z < back; ++z)
              for (int64_t y = top; y < bottom; ++y)
                spread(packed + (i * sources + s) * width,
                       arrays.data() + s * pitch + taps[i].first + p.row(z, y) + left, pitch,
                       std::min(block, sources - s),
                       sums.data() + ((z * ny + y) * nx + left) * width, right - left);
        }
        interleave(turned.data(), line, sums.data(), 1, width, positions, width);
        const bool one = phase.step[1] == 1 && phase.step[2] == 1 && result.rows_are_one(nx);
        for (int64_t i = 0; i < std::min(width, rows - first); ++i)
          for (int64_t z = 0; z < nz; ++z)
            for (int64_t y = 0; y < (one ? 1 : ny); ++y)
              result.write(n, g * rows + first + i, phase.output(p, slab, z, y), phase.step[2],
                           turned.data() + i * line + (z * ny + y) * nx, one ? ny * nx : nx);
      }
    }
  });
}
