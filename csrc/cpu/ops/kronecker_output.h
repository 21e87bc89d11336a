// B[g] = sum_{v, n, t} s s^T over the channels of group g, or with s summed over t first (reduce).

// The same with a one appended to every s (bias).
template <class T>
void channel_moments(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                     int64_t groups, bool reduce, bool bias) {
  const int64_t channels = s.size[2] / groups;
  // Positions that follow each other at one step are one line.
  for (int d : {4, 3})
    if (s.stride[d] == s.stride[5] * s.size[5] || s.size[d] == 1) {
      s.size[5] *= s.size[d];
      s.size[d] = 1;
    } else {
      break;
    }
  const int64_t nx = s.size[5], lines = s.size[3] * s.size[4];
  // A piece is one line (a stretch of it if long), or one vector when reducing.
  constexpr int64_t kStretch = 128;
  const int64_t stretches = reduce ? 1 : ceil_div(nx, kStretch);
  const int64_t per_unit = reduce ? 1 : lines * stretches;
  std::vector<int64_t> counts(s.size[0] * s.size[1] * per_unit, 1);
  if (!reduce)
    for (size_t i = 0; i < counts.size(); ++i)
      counts[i] = std::min(kStretch, nx - static_cast<int64_t>(i) % stretches * kStretch);
  for (int64_t g = 0; g < groups; ++g)
    second_moment<T>(
        context, out.data + g * out.stride[3], out.stride[4], out.stride[5], update,
        channels + bias, counts, 1,
        [&](const Panels<T>& panels, int64_t piece, int64_t first, int64_t) {
          const int64_t unit = piece / per_unit, line = piece % per_unit / stretches;
          const T* base = s.data + unit / s.size[1] * s.stride[0] + unit % s.size[1] * s.stride[1] +
                          g * channels * s.stride[2];
          const T* from = base + line / s.size[4] * s.stride[3] + line % s.size[4] * s.stride[4] +
                          piece % stretches * kStretch * s.stride[5];
          for (int64_t k = 0; bias && k < counts[piece]; ++k)
            *panels.column(channels, first + k) = reduce ? T(lines * nx) : T(1);
          for (int64_t j = 0; j < channels; j += kPanel<T>) {
            T* to = panels.column(j, first);
            const int64_t wide = std::min<int64_t>(kPanel<T>, channels - j);
            if (!reduce) {
              interleave(to, kPanel<T>, from + j * s.stride[2], s.stride[5], s.stride[2], wide,
                         counts[piece]);
              continue;
            }
            for (int64_t c = 0; c < wide; ++c) {
              const T* channel = base + (j + c) * s.stride[2];
              to[c] = 0;
              for (int64_t z = 0; z < s.size[3]; ++z)
                for (int64_t y = 0; y < s.size[4]; ++y)
                  for (int64_t x = 0; x < nx; ++x)
                    to[c] += channel[z * s.stride[3] + y * s.stride[4] + x * s.stride[5]];
            }
          }
        });
}

template <class T>
void kronecker_output(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                      int64_t groups, bool reduce) {
  channel_moments<T>(context, out, update, s, groups, reduce, false);
}
