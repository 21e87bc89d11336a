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

// The taps that meet each position of the output, and the source entries they meet: runs in which
// both grow by one. Taps of a convolution are counted backwards, which makes runs of them.
struct PullTaps {
  struct Run {
    int64_t tap, source, count;
  };
  std::vector<Run> runs;
  std::vector<int64_t> begin{0};  // runs of position p: from begin[p] to begin[p + 1]

  PullTaps(const Taps& taps, const int64_t output[3], const int64_t source[3], bool transposed) {
    for (int64_t p = 0; p < output[0] * output[1] * output[2]; ++p) {
      const int64_t at[3] = {p / output[2] / output[1], p / output[2] % output[1], p % output[2]};
      for (int64_t k = 0; k < taps.kernel[0] * taps.kernel[1] * taps.kernel[2]; ++k) {
        const int64_t tap[3] = {k / taps.kernel[2] / taps.kernel[1],
                                k / taps.kernel[2] % taps.kernel[1], k % taps.kernel[2]};
        int64_t entry = 0;
        bool meets = true;
        for (int d = 0; d < 3; ++d) {
          int64_t from = at[d] * taps.stride[d] + tap[d] * taps.dilation[d] - taps.padding[d];
          if (!transposed) {
            from = at[d] + taps.padding[d] - (taps.kernel[d] - 1 - tap[d]) * taps.dilation[d];
            meets = meets && from % taps.stride[d] == 0;
            from /= taps.stride[d];
          }
          meets = meets && from >= 0 && from < source[d];
          entry = entry * source[d] + from;
        }
        if (!meets) continue;
        const bool first = static_cast<int64_t>(runs.size()) == begin.back();
        if (!first && runs.back().tap + runs.back().count == k &&
            runs.back().source + runs.back().count == entry)
          ++runs.back().count;
        else
          runs.push_back({k, entry, 1});
      }
      begin.push_back(runs.size());
    }
  }
  std::span<const Run> at(int64_t p) const {
    return {runs.data() + begin[p], runs.data() + begin[p + 1]};
  }
};

// to[r * pitch] = the sums of R channels, in C vectors of lanes.
template <class T, int R, int C>
void pull_tile(std::span<const PullTaps::Run> runs, int64_t sources, const T* source,
               const T* weight, T* to, int64_t pitch) {
  constexpr int64_t width = C * kWidth<T>;
  Reg<T> acc[R][C] = {};
  for (const auto& run : runs) {
    const T* b = source + run.source * sources * width;
    const T* w = weight + run.tap * sources * R;
    int64_t terms = run.count * sources;
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

template <class T>
void window_pull(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                 Grid<const T> weight, Taps taps, bool transposed, Grid<const T> factor) {
  const int64_t sources = s.size[2] / taps.groups, rows = out.size[2] / taps.groups;
  const int64_t lanes = out.size[1], kernel = taps.kernel[0] * taps.kernel[1] * taps.kernel[2];
  const PullTaps met(taps, out.size + 3, s.size + 3, transposed);

  const Cut blocks(rows, kTileRows);
  const int64_t vectors = tile_columns(blocks.largest()), width = vectors * kWidth<T>;
  Scratch<T> weights(taps.groups * rows * kernel * sources);
  const auto weights_of = [&](int64_t g, int64_t r) {
    return weights.data() + (g * rows + r) * kernel * sources;
  };
  for (int64_t g = 0; g < taps.groups; ++g)
    for (int64_t i = 0; i < blocks.blocks; ++i) {
      const int64_t r = blocks.begin(i);
      pack_pull_weights(weights_of(g, r), weight, taps, transposed, sources,
                        transposed ? 0 : g * sources, transposed ? g * rows + r : r,
                        blocks.size(i));
    }

  const int64_t pitch = s.size[3] * s.size[4] * s.size[5] * sources * width;
  const int64_t groups =
      std::clamp<int64_t>(tuning::kPullBytes / (pitch * static_cast<int64_t>(sizeof(T))), 1,
                          std::min<int64_t>(tuning::kPullGroups, ceil_div(lanes, width)));
  const int64_t together = groups * width, chunks = ceil_div(lanes, together);
  const int64_t units = chunks * taps.groups * out.size[0];
  const int64_t tasks = std::min(units, 4 * context.threads);
  const Slopes<T> slopes(factor.data ? Activation::given : Activation::identity, 0, false);

  context.parallel_for(tasks, [&](int64_t task) {
    Scratch<T> packed(groups * pitch, groups * pitch);
    const int64_t size = out.size[5] * rows * together;
    Scratch<T> row(size, size);
    const auto [begin, end] = run_range(units, tasks, task);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t v = unit % out.size[0], g = unit / out.size[0] % taps.groups;
      const int64_t first = unit / out.size[0] / taps.groups * together;
      const int64_t here = std::min(lanes - first, together);
      pack_window(packed.data(), s, v, g * sources, sources, 0, s.size[5], 1, sources,
                  {first, here, width, pitch});
      // A row at a time: its sources stay in the nearest cache, its lanes go out together.
      for (int64_t line = 0; line < out.size[3] * out.size[4]; ++line) {
        for (int64_t j = 0; j * width < here; ++j)
          for (int64_t x = 0; x < out.size[5]; ++x)
            for (int64_t i = 0; i < blocks.blocks; ++i) {
              const auto tile = tile_for(blocks.size(i), vectors,
                                         []<int R, int C>() { return &pull_tile<T, R, C>; });
              tile(met.at(line * out.size[5] + x), sources, packed.data() + j * pitch,
                   weights_of(g, blocks.begin(i)),
                   row.data() + (x * rows + blocks.begin(i)) * together + j * width, together);
            }
        for (int64_t x = 0; x < out.size[5]; ++x)
          for (int64_t r = 0; r < rows; ++r) {
            const std::array u{line / out.size[4], line % out.size[4], x};
            write_row<T>(address(out, first, g * rows + r, u) + v * out.stride[0], out.stride[1],
                         update, row.data() + (x * rows + r) * together, slopes,
                         factor.data ? address(factor, first, g * rows + r, u) : nullptr,
                         factor.stride[1], here);
          }
      }
    }
  });
}
