// The sums of a convolution (epilogue.h), with positions in the lanes of vectors.
//
// One that is transposed gathers from arrays in which every tap is an offset (pack/padded.h). The
// other is as many such gathers as the stride has phases: outputs of one phase read m through the
// same taps. Parallel over samples, groups and row blocks of the output, whose rows are made once.

// Streams of the same sizes. Weight [A, B / groups, k]: the output is b of the group's a for a
// convolution, else a.
template <class T>
struct Convolution {
  std::span<const Stream<T>> streams;
  Grid<const T> weight;
  Taps taps;
  bool transposed;

  const Grid<T>& out() const { return streams[0].out; }
  const Grid<const T>& m() const { return streams[0].m; }
  // Of one group.
  int64_t sources() const { return m().size[2] / taps.groups; }
  int64_t rows() const { return out().size[2] / taps.groups; }

  // f(W) of output channels [r0, r0 + rows) and the listed taps, term by term: [source][tap][row].
  void pack(T* to, int64_t group, int64_t r0, int64_t rows, const std::vector<int64_t>& indices,
            bool squared) const {
    const int64_t *kernel = taps.kernel, *stride = weight.stride;
    const int64_t source_stride = stride[transposed ? 2 : 1],
                  row_stride = stride[transposed ? 1 : 2];
    const int64_t first_source = transposed ? 0 : group * sources();
    const int64_t first_row = transposed ? group * this->rows() + r0 : r0;
    for (int64_t s = 0; s < sources(); ++s)
      for (int64_t tap : indices) {
        const int64_t x = tap % kernel[2], y = tap / kernel[2] % kernel[1];
        const int64_t z = tap / kernel[2] / kernel[1];
        const T* w = weight.data + (first_source + s) * source_stride + first_row * row_stride +
                     z * stride[3] + y * stride[4] + x * stride[5];
        for (int64_t r = 0; r < rows; ++r, ++to) {
          const T value = w[r * row_stride];
          *to = squared ? value * value : value;
        }
      }
  }
};

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

// Outputs at + step * position, which read through the same taps.
struct OutputPhase {
  Axes axes;
  std::array<int64_t, 3> at, step;

  int64_t positions() const { return axes[0].positions * axes[1].positions * axes[2].positions; }
  // The output of a position of a row block.
  std::array<int64_t, 3> output(const Planes& p, int64_t block, int64_t z, int64_t y) const {
    return {(p.begin(0, block) + z) * step[0] + at[0], (p.begin(1, block) + y) * step[1] + at[1],
            p.begin(2, block) * step[2] + at[2]};
  }
};

// A row of `count` positions of some output channels: whole vectors go to `direct`, if it is given,
// and all else to `line`. Returns how many entries have gone to `direct`.
template <class T>
int64_t convolve_row(const T* b, const std::vector<int64_t>& offsets, const T* w, int64_t channels,
                     int64_t count, T* line, int64_t pitch, const MaskedRows<T>& direct) {
  const Cut strips(ceil_div(count, kWidth<T>), tile_columns(channels));
  int64_t done = 0;
  for (int64_t i = 0; i < strips.blocks; ++i) {
    const int64_t q = strips.begin(i) * kWidth<T>, end = strips.begin(i + 1) * kWidth<T>;
    const auto tile =
        tile_for(channels, strips.size(i), []<int R, int C>() { return &axpy_tile<T, R, C>; });
    const bool stores = direct.data && end <= count;
    tile(b + q, offsets.data(), offsets.size(), w, stores ? direct.data + q : line + q,
         stores ? direct.pitch : pitch, stores && direct.mask ? direct.mask + q : nullptr,
         direct.mask_pitch);
    if (stores) done = end;
  }
  return done;
}

template <class T>
void convolve_phase(const Context& context, const Convolution<T>& c, const OutputPhase& phase) {
  const int64_t sources = c.sources(), rows = c.rows(), groups = c.taps.groups;
  const int64_t step = phase.step[2], samples = c.out().size[1];
  // Row blocks so small that every thread gets several.
  const int64_t share = samples * groups * phase.positions() / (4 * context.threads);
  const Planes p = Planes::make<T>(phase.axes, sources, tuning::kConvolutionBytes,
                                   std::max(share, tuning::kConvolutionPositions));
  std::vector<int64_t> offsets, indices;
  const auto taps = p.tap_offsets(c.taps.kernel);
  for (const auto& [offset, index] : taps) indices.push_back(index);
  for (int64_t s = 0; s < sources; ++s)
    for (const auto& [offset, index] : taps) offsets.push_back(s * p.phases * p.plane + offset);
  const int64_t terms = offsets.size();

  // Rows with too few sums to hide their latency go together, with what lies between them.
  const int64_t width = p.count(2, 0);
  const int64_t sums = std::min<int64_t>(kTileRows, rows) * ceil_div(width, kWidth<T>);
  const int64_t fit = tuning::kShortVectors * kWidth<T> / p.lengths[2];
  const int64_t together =
      sums < tuning::kShortSums ? std::clamp<int64_t>(fit, 1, p.count(1, 0)) : 1;
  const int64_t pitch = round_up((together - 1) * p.lengths[2] + width, kWidth<T>);

  // Weights of each stream and all groups, blocks of channels one after another.
  const Cut blocks(rows, kTileRows);
  const int64_t of_stream = groups * rows * terms;
  Scratch<T> weights(c.streams.size() * of_stream);
  for (size_t k = 0; k < c.streams.size(); ++k)
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t i = 0; i < blocks.blocks; ++i)
        c.pack(weights.data() + k * of_stream + (g * rows + blocks.begin(i)) * terms, g,
               blocks.begin(i), blocks.size(i), indices, c.streams[k].slopes.squared);

  context.parallel_for(samples * groups * p.row_blocks(), [&](int64_t task) {
    const int64_t row_block = task % p.row_blocks(), g = task / p.row_blocks() % groups;
    const int64_t n = task / p.row_blocks() / groups, filled = sources * p.phases * p.plane;
    const int64_t nz = p.count(0, row_block), ny = p.count(1, row_block),
                  nx = p.count(2, row_block);
    Scratch<T> arrays(filled, filled), line(kTileRows * pitch);
    for (size_t k = 0; k < c.streams.size(); ++k) {
      const Stream<T>& stream = c.streams[k];
      fill_planes<T>(arrays.data(), p, row_block, stream.m, 0, n, g * sources, (g + 1) * sources,
                     Identity{});
      for (int64_t row = 0; row < nz * ceil_div(ny, together); ++row)
        for (int64_t i = 0; i < blocks.blocks; ++i) {
          const int64_t z = row / ceil_div(ny, together),
                        y = row % ceil_div(ny, together) * together;
          const int64_t lines = std::min(together, ny - y), channel = g * rows + blocks.begin(i);
          auto u = phase.output(p, row_block, z, y);
          int64_t done = 0;
          if (terms > 0)
            done =
                convolve_row<T>(arrays.data() + p.row(z, y), offsets,
                                weights.data() + k * of_stream + channel * terms, blocks.size(i),
                                (lines - 1) * p.lengths[2] + nx, line.data(), pitch,
                                lines == 1 ? stream.direct(n, channel, u, step) : MaskedRows<T>{});
          u[2] += done * step;
          for (int64_t j = 0; j < lines && done < nx; ++j, u[1] += phase.step[1])
            for (int64_t b = 0; b < blocks.size(i); ++b)
              stream.write(n, channel + b, u, step,
                           line.data() + b * pitch + j * p.lengths[2] + done, nx - done);
        }
    }
  });
}

template <class T>
void convolve(const Context& context, std::span<const Stream<T>> streams,
              const Grid<const T>& weight, const Taps& taps, bool transposed) {
  const Convolution<T> c{streams, weight, taps, transposed};
  const int64_t *out = c.out().size + 3, *source = c.m().size + 3;
  std::array<int64_t, 3> phases, steps;
  for (int d = 0; d < 3; ++d) {
    phases[d] = transposed ? 1 : std::min(taps.stride[d], out[d]);
    steps[d] = transposed ? 1 : taps.stride[d];
  }
  for (int64_t i = 0; i < phases[0] * phases[1] * phases[2]; ++i) {
    const std::array at{i / phases[2] / phases[1], i / phases[2] % phases[1], i % phases[2]};
    auto axis = [&](int d) {
      return transposed ? gather_axis(taps, d, out[d], source[d])
                        : scatter_axis(taps, d, at[d], out[d], source[d]);
    };
    convolve_phase(context, c, {{axis(0), axis(1), axis(2)}, at, steps});
  }
}
