// Columns pulled back through a layer as windows, times a factor.
//
//   conv:       out[b, u] = f[b, u] sum_{a, k, t : t * stride - padding + k * dilation = u}
//               W[a, b, k] s[a, t]
//   transposed: out[a, t] = f[a, t] sum_{b, k} W[a, b, k] s[b, t * stride - padding + k * dilation]
//
// A tile is some output channels times some vectors of lanes, held in registers while it runs over
// taps and source channels: each step loads the lanes once and one number for each channel.
// Parallel over columns, groups and chunks of lanes; every result is written once, from a buffer
// of one row of positions, where the factor comes in.

// The taps that meet each position of an axis, as runs in which tap and source both grow by one.
// Taps of a convolution are counted backwards, which makes runs of them.
struct PullAxis {
  struct Run {
    int64_t tap, source, count;
  };
  std::vector<Run> runs;
  std::vector<int64_t> begin{0};  // runs of position p: from begin[p] to begin[p + 1]

  PullAxis(const Taps& taps, int d, int64_t positions, int64_t sources, bool transposed) {
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t tap = 0; tap < taps.kernel[d]; ++tap) {
        int64_t source;
        if (transposed) {
          source = p * taps.stride[d] + tap * taps.dilation[d] - taps.padding[d];
        } else {
          const int64_t k = taps.kernel[d] - 1 - tap;
          const int64_t distance = p + taps.padding[d] - k * taps.dilation[d];
          if (distance % taps.stride[d]) continue;
          source = distance / taps.stride[d];
        }
        if (source < 0 || source >= sources) continue;
        if (static_cast<int64_t>(runs.size()) > begin.back()) {
          Run& last = runs.back();
          if (last.tap + last.count == tap && last.source + last.count == source) {
            ++last.count;
            continue;
          }
        }
        runs.push_back({tap, source, 1});
      }
      begin.push_back(runs.size());
    }
  }
  std::span<const Run> at(int64_t p) const {
    return {runs.data() + begin[p], runs.data() + begin[p + 1]};
  }
};

// Where a tile reads: the first tap and entry of some rows, and runs along each of them.
struct PullReads {
  std::vector<PullAxis::Run> rows;
  std::span<const PullAxis::Run> x;
  int64_t sources;

  // The rows that row (z, y) of the output meets.
  void find(const PullAxis* axes, const int64_t at[3], const int64_t kernel[3],
            const int64_t size[3]) {
    rows.clear();
    for (const auto& z : axes[0].at(at[0]))
      for (int64_t i = 0; i < z.count; ++i)
        for (const auto& y : axes[1].at(at[1]))
          for (int64_t j = 0; j < y.count; ++j)
            rows.push_back({((z.tap + i) * kernel[1] + y.tap + j) * kernel[2],
                            ((z.source + i) * size[1] + y.source + j) * size[2], 1});
  }
};

// to[r * pitch] = the sums of R channels, in C vectors of lanes.
template <class T, int R, int C>
void pull_tile(const PullReads& reads, const T* source, const T* weight, T* to, int64_t pitch) {
  constexpr int64_t width = C * kWidth<T>;
  Reg<T> acc[R][C];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < C; ++v) acc[r][v] = Reg<T>{};
  const int64_t source_step = reads.sources * width, weight_step = reads.sources * R;
  for (const auto& row : reads.rows)
    for (const auto& x : reads.x) {
      const T* b = source + (row.source + x.source) * source_step;
      const T* w = weight + (row.tap + x.tap) * weight_step;
      int64_t terms = x.count * reads.sources;
      do {
        Reg<T> lanes[C];
        for (int v = 0; v < C; ++v) lanes[v] = load(b + v * kWidth<T>);
        for (int r = 0; r < R; ++r) {
          const Reg<T> entry = broadcast(w[r]);
          for (int v = 0; v < C; ++v) acc[r][v] += entry * lanes[v];
        }
        w += R;
        b += width;
      } while (--terms);
    }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < C; ++v) store(to + r * pitch + v * kWidth<T>, acc[r][v]);
}

template <class T>
using PullTile = void (*)(const PullReads&, const T*, const T*, T*, int64_t);

// Output channels of a tile, and its vectors of lanes for so many channels of a layer.
constexpr int kPullRows = kManyRegisters ? 8 : 4;
constexpr int pull_vectors(int64_t rows) {
  if (rows > 4) return 3;
  constexpr int many[] = {8, 8, 8, 6}, few[] = {8, 6, 4, 3};
  return kManyRegisters ? many[rows - 1] : few[rows - 1];
}

// The tile of R = rows channels of a layer that has `all` of them.
template <class T>
PullTile<T> pull_tile_for(int64_t rows, int64_t all) {
  constexpr int One = pull_vectors(1), Two = pull_vectors(2), Three = pull_vectors(3),
                Four = pull_vectors(4);
  if (all == 1) return &pull_tile<T, 1, One>;
  if (all == 2) return &pull_tile<T, 2, Two>;
  if (all == 3) return &pull_tile<T, 3, Three>;
  if (all == 4) return &pull_tile<T, 4, Four>;
  if constexpr (kManyRegisters) {
    if (rows == 4) return &pull_tile<T, 4, 3>;
    if (rows == 5) return &pull_tile<T, 5, 3>;
    if (rows == 6) return &pull_tile<T, 6, 3>;
    if (rows == 7) return &pull_tile<T, 7, 3>;
    return &pull_tile<T, 8, 3>;
  }
  if (rows == 2) return &pull_tile<T, 2, 3>;
  if (rows == 3) return &pull_tile<T, 3, 3>;
  return &pull_tile<T, 4, 3>;
}

// The weights of R output channels from row r0 on: to[tap][source][R].
template <class T>
void pack_pull_weights(T* to, const Grid<const T>& weight, const Taps& taps, bool transposed,
                       int64_t sources, int64_t first_source, int64_t first_row, int64_t rows) {
  const int64_t source_stride = weight.stride[transposed ? 2 : 1];
  const int64_t row_stride = weight.stride[transposed ? 1 : 2];
  const auto index = [&](int d, int64_t tap) {
    return (transposed ? tap : taps.kernel[d] - 1 - tap) * weight.stride[3 + d];
  };
  for (int64_t z = 0; z < taps.kernel[0]; ++z)
    for (int64_t y = 0; y < taps.kernel[1]; ++y)
      for (int64_t x = 0; x < taps.kernel[2]; ++x) {
        const T* w = weight.data + index(0, z) + index(1, y) + index(2, x) +
                     first_source * source_stride + first_row * row_stride;
        for (int64_t c = 0; c < sources; ++c)
          for (int64_t r = 0; r < rows; ++r, ++to) *to = w[c * source_stride + r * row_stride];
      }
}

// out <- decay * out + scale * value * factor along the lanes of a chunk.
template <class T>
void write_lanes(T* out, int64_t stride, Update update, const T* value, const T* factor,
                 int64_t factor_stride, int64_t lanes) {
  const T decay = update.decay, scale = update.scale;
  if (decay == 0 && stride == 1 && factor && factor_stride == 1)
    for (int64_t i = 0; i < lanes; ++i) out[i] = scale * value[i] * factor[i];
  else if (decay == 0 && stride == 1 && !factor)
    for (int64_t i = 0; i < lanes; ++i) out[i] = scale * value[i];
  else
    for (int64_t i = 0; i < lanes; ++i) {
      const T result = scale * value[i] * (factor ? factor[i * factor_stride] : T(1));
      out[i * stride] = decay == 0 ? result : decay * out[i * stride] + result;
    }
}

template <class T>
void window_pull(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                 Grid<const T> weight, Taps taps, bool transposed, Grid<const T> factor) {
  constexpr int64_t kPackBytes = 192 << 10, kMostTiles = 8;
  const int64_t sources = s.size[2] / taps.groups, rows = out.size[2] / taps.groups;
  const int64_t lanes = out.size[1], kernel = taps.kernel[0] * taps.kernel[1] * taps.kernel[2];
  const int64_t width = pull_vectors(rows) * kWidth<T>;
  const auto axis = [&](int d) {
    return PullAxis(taps, d, out.size[3 + d], s.size[3 + d], transposed);
  };
  const PullAxis axes[3] = {axis(0), axis(1), axis(2)};

  const Cut blocks(rows, kPullRows);
  std::vector<PullTile<T>> block_tiles;
  for (int64_t i = 0; i < blocks.blocks; ++i)
    block_tiles.push_back(pull_tile_for<T>(blocks.size(i), rows));
  Scratch<T> weights(taps.groups * rows * kernel * sources);
  for (int64_t g = 0; g < taps.groups; ++g)
    for (int64_t i = 0; i < blocks.blocks; ++i) {
      const int64_t r = blocks.begin(i);
      pack_pull_weights(weights.data() + (g * rows + r) * kernel * sources, weight, taps,
                        transposed, sources, transposed ? 0 : g * sources,
                        transposed ? g * rows + r : r, blocks.size(i));
    }

  const int64_t pitch = s.size[3] * s.size[4] * s.size[5] * sources * width;
  const int64_t tiles =
      std::clamp<int64_t>(kPackBytes / (pitch * static_cast<int64_t>(sizeof(T))), 1,
                          std::min<int64_t>(kMostTiles, ceil_div(lanes, width)));
  const int64_t chunks = ceil_div(lanes, tiles * width);
  const int64_t units = chunks * taps.groups * out.size[0];
  const int64_t tasks = std::min(units, 4 * context.threads);

  context.parallel_for(tasks, [&](int64_t task) {
    Pack<T> packed(tiles * pitch);
    PullReads reads{{}, {}, sources};
    Pack<T> row(out.size[5] * rows * tiles * width);
    const auto [begin, end] = run_range(units, tasks, task);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t v = unit % out.size[0], g = unit / out.size[0] % taps.groups;
      const int64_t first = unit / out.size[0] / taps.groups * tiles * width;
      const int64_t here = std::min(lanes - first, tiles * width);
      T* to = packed.data();
      for (int64_t z = 0; z < s.size[3]; ++z)
        for (int64_t y = 0; y < s.size[4]; ++y)
          for (int64_t x = 0; x < s.size[5]; ++x)
            for (int64_t c = 0; c < sources; ++c, to += width)
              pack_lanes<false>(to, pitch, width,
                                s.data + v * s.stride[0] + first * s.stride[1] +
                                    (g * sources + c) * s.stride[2] + z * s.stride[3] +
                                    y * s.stride[4] + x * s.stride[5],
                                s.stride[1], here, Identity{});
      // A row at a time: its sources stay in the nearest cache, its lanes go out together.
      int64_t at[3];
      for (at[0] = 0; at[0] < out.size[3]; ++at[0])
        for (at[1] = 0; at[1] < out.size[4]; ++at[1]) {
          reads.find(axes, at, taps.kernel, s.size + 3);
          for (int64_t j = 0; j * width < here; ++j)
            for (int64_t x = 0; x < out.size[5]; ++x) {
              reads.x = axes[2].at(x);
              for (int64_t i = 0; i < blocks.blocks; ++i) {
                const int64_t r = blocks.begin(i);
                block_tiles[i](reads, packed.data() + j * pitch,
                               weights.data() + (g * rows + r) * kernel * sources,
                               row.data() + (x * rows + r) * tiles * width + j * width,
                               tiles * width);
              }
            }
          const T* value = row.data();
          for (at[2] = 0; at[2] < out.size[5]; ++at[2])
            for (int64_t r = 0; r < rows; ++r, value += tiles * width) {
              const auto locate = [&](const auto& grid) {
                return grid.data + first * grid.stride[1] + (g * rows + r) * grid.stride[2] +
                       at[0] * grid.stride[3] + at[1] * grid.stride[4] + at[2] * grid.stride[5];
              };
              write_lanes(locate(out) + v * out.stride[0], out.stride[1], update, value,
                          factor.data ? locate(factor) : nullptr, factor.stride[1], here);
            }
        }
    }
  });
}
