// A[g] = sum_{n, t} x x^T over the patches of group g, or of patches summed over t (reduce).
//
// Patches are packed straight from padded arrays in which every tap is an offset (pack/padded.h), a
// slab of a sample at a time; the unfolded input never exists. A transposed convolution is a plain
// one with flipped taps over an input spread out by its stride: phase r of the output reads the
// taps that fall on it, and zeros elsewhere.

template <class T>
void kronecker_input(const Context& context, Grid<T> out, Update update, Grid<const T> x,
                     const int64_t output_size[3], Taps taps, bool transposed, bool reduce,
                     bool bias) {
  const int64_t channels = x.size[2] / taps.groups, samples = x.size[1];
  const int64_t kernel = taps.kernel[0] * taps.kernel[1] * taps.kernel[2];
  const int64_t features = channels * kernel + bias;
  const bool empty = output_size[0] * output_size[1] * output_size[2] == 0;
  bool pointwise = !empty;
  for (int d = 0; d < 3; ++d)
    pointwise &= taps.kernel[d] == 1 && taps.stride[d] == 1 && taps.padding[d] == 0 &&
                 output_size[d] == x.size[3 + d];
  // A patch is one position of the input itself.
  if (pointwise) return channel_moments<T>(context, out, update, x, taps.groups, reduce, bias);
  if (!transposed && !reduce && !bias && !empty && LagMoment<T>::applies(taps, channels)) {
    for (int64_t g = 0; g < taps.groups; ++g)
      LagMoment<T>(context, x, g * channels, channels, output_size, taps)
          .write(out.data + g * out.stride[3], out.stride[4], out.stride[5], update);
    return;
  }
  // Pieces of at most so many positions: several threads pack a chunk.
  constexpr int64_t kPlaneBytes = 128 << 10, kChannels = 8, kPositions = 256;
  const int64_t pack_tasks = std::max<int64_t>(1, ceil_div(channels, kChannels));

  // The ways positions read their taps: one for a convolution, one a phase for a transposed one.
  std::vector<Planes> ways;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> tap_offsets;
  int64_t phases[3];
  for (int d = 0; d < 3; ++d) phases[d] = transposed ? std::min(taps.stride[d], output_size[d]) : 1;
  for (int64_t way = 0; !empty && way < phases[0] * phases[1] * phases[2]; ++way) {
    const int64_t at[3] = {way / phases[2] / phases[1], way / phases[2] % phases[1],
                           way % phases[2]};
    auto axis = [&](int d) {
      return transposed ? scatter_axis(taps, d, at[d], output_size[d], x.size[3 + d])
                        : gather_axis(taps, d, output_size[d], x.size[3 + d]);
    };
    ways.push_back(
        Planes::make<T>({axis(0), axis(1), axis(2)}, kChannels, kPlaneBytes, kPositions));
    tap_offsets.push_back(ways.back().tap_offsets(taps.kernel));
  }
  // Pieces: a slab of a sample, way by way; or a whole sample when reducing.
  struct Piece {
    int64_t n, way, slab;
  };
  std::vector<Piece> pieces;
  std::vector<int64_t> counts;
  for (int64_t n = 0; !empty && n < samples; ++n) {
    if (reduce) {
      pieces.push_back({n, 0, 0});
      counts.push_back(1);
      continue;
    }
    for (size_t way = 0; way < ways.size(); ++way)
      for (int64_t slab = 0; slab < ways[way].slabs(); ++slab) {
        const Planes& p = ways[way];
        pieces.push_back({n, static_cast<int64_t>(way), slab});
        counts.push_back(p.count(0, slab) * p.count(1, slab) * p.count(2, slab));
      }
  }
  for (int64_t g = 0; g < taps.groups; ++g)
    second_moment<T>(
        context, out.data + g * out.stride[3], out.stride[4], out.stride[5], update, features,
        counts, pack_tasks,
        [&](const Panels<T>& panels, int64_t piece, int64_t first, int64_t task) {
          const int64_t c0 = task * kChannels, c1 = std::min(channels, c0 + kChannels);
          const auto [n, way, slab] = pieces[piece];
          auto each_slab = [&](const Planes& p, int64_t index, auto visit) {
            Scratch<T> arrays((c1 - c0) * p.phases * p.plane + p.flat);
            fill_planes<T>(arrays.data(), p, index, x, 0, n, g * channels + c0, g * channels + c1,
                           Identity{});
            visit(arrays.data());
          };
          // Walks a column's positions of a slab row by row.
          auto rows_of = [&](const Planes& p, int64_t index, auto row) {
            int64_t k = 0;
            const int64_t nx = p.count(2, index);
            for (int64_t z = 0; z < p.count(0, index); ++z)
              for (int64_t y = 0; y < p.count(1, index); ++y, k += nx) row(p.row(z, y), k, nx);
          };
          if (task == pack_tasks - 1 && bias)
            for (int64_t k = 0; k < counts[piece]; ++k)
              *panels.column(features - 1, first + k) =
                  reduce ? T(output_size[0] * output_size[1] * output_size[2]) : T(1);
          if (!reduce) {
            const Planes& p = ways[way];
            each_slab(p, slab, [&](const T* arrays) {
              // Offsets of all features of these channels; none for a tap of another phase.
              std::vector<int64_t> offsets((c1 - c0) * kernel, -1);
              for (int64_t c = 0; c < c1 - c0; ++c)
                for (const auto& [offset, index] : tap_offsets[way])
                  offsets[c * kernel + index] = c * p.phases * p.plane + offset;
              const bool whole = tap_offsets[way].size() == static_cast<size_t>(kernel);
              rows_of(p, slab, [&](int64_t row, int64_t k, int64_t nx) {
                for (int64_t j = c0 * kernel; j < c1 * kernel;) {
                  T* to = panels.column(j, first + k);
                  const int64_t run = std::min(c1 * kernel - j, kPanel<T> - j % kPanel<T>);
                  const int64_t* of = offsets.data() + j - c0 * kernel;
                  if (whole)
                    gather_lines(to, kPanel<T>, arrays + row, of, run, nx);
                  else
                    for (int64_t t = 0; t < nx; ++t)
                      for (int64_t i = 0; i < run; ++i)
                        to[t * kPanel<T> + i] = of[i] < 0 ? T(0) : arrays[row + t + of[i]];
                  j += run;
                }
              });
            });
            return;
          }
          for (int64_t j = c0 * kernel; j < c1 * kernel; ++j) *panels.column(j, first) = T(0);
          for (size_t w = 0; w < ways.size(); ++w)
            for (int64_t index = 0; index < ways[w].slabs(); ++index)
              each_slab(ways[w], index, [&](const T* arrays) {
                for (int64_t c = c0; c < c1; ++c)
                  for (const auto& [offset, tap] : tap_offsets[w]) {
                    const T* from = arrays + (c - c0) * ways[w].phases * ways[w].plane + offset;
                    T total = 0;
                    rows_of(ways[w], index, [&](int64_t row, int64_t, int64_t nx) {
                      for (int64_t t = 0; t < nx; ++t) total += from[row + t];
                    });
                    *panels.column(c * kernel + tap, first) += total;
                  }
              });
        });
}
