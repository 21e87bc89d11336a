// The sums of a convolution, phase by phase, in the way that is cheaper.

template <class T>
void convolve(const Context& context, std::span<const Stream<T>> streams,
              const Grid<const T>& weight, const Taps& taps, bool transposed) {
  const Convolution<T> c{streams, weight, taps, transposed};
  const Grid<T>& out = c.out();
  std::array<int64_t, 3> phases, steps;
  for (int d = 0; d < 3; ++d) {
    phases[d] = transposed ? 1 : std::min(taps.stride[d], out.size[3 + d]);
    steps[d] = transposed ? 1 : taps.stride[d];
  }
  for (int64_t i = 0; i < phases[0] * phases[1] * phases[2]; ++i) {
    const std::array at{i / phases[2] / phases[1], i / phases[2] % phases[1], i % phases[2]};
    auto axis = [&](int d) {
      return transposed ? gather_axis(taps, d, out.size[3 + d], c.m().size[3 + d])
                        : scatter_axis(taps, d, at[d], out.size[3 + d], c.m().size[3 + d]);
    };
    const OutputPhase phase{{axis(0), axis(1), axis(2)}, at, steps};
    if (prefers_lanes(c, phase))
      convolve_by_lanes(context, c, phase);
    else
      convolve_by_rows(context, c, phase);
  }
}
