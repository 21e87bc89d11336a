// The largest entry of each window of an image's channels, and its place in the channel.
//
// As torch has it: a NaN is larger than anything before it, of equal entries the first counts. Rows
// of the input, dense as the result is, are sorted by their phase, so that a tap of the window is
// one offset for all outputs of a row. Parallel over channels.

// Integers of a number's size, and vectors of them that may lie anywhere.
template <class T>
struct Places;
template <>
struct Places<float> {
  typedef int32_t Entry;
  typedef int32_t Vec __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
};
template <>
struct Places<double> {
  typedef int64_t Entry;
  typedef int64_t Vec __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
};

template <class T>
inline typename Places<T>::Vec load_places(const typename Places<T>::Entry* from) {
  return *reinterpret_cast<const typename Places<T>::Vec*>(from);
}

// Entries of a row by their phase: to[p * length + q] = row[q * step + p] for all p < step.
template <class T>
void split_row(T* to, int64_t length, const T* row, int64_t width, int64_t step) {
  int64_t x = 0;
  if (step == 2)
    for (; x + 2 * kWidth<T> <= width; x += 2 * kWidth<T>) {
      const Reg<T> low = load(row + x), high = load(row + x + kWidth<T>);
      store(to + x / 2, every_other<T, 0>(low, high));
      store(to + length + x / 2, every_other<T, 1>(low, high));
    }
  for (int64_t q = x / step; x < width; ++q)
    for (int64_t p = 0; p < step && x < width; ++p, ++x) to[p * length + q] = row[x];
}

template <class T>
void max_pool(const Context& context, Grid<T> out, int64_t* index, Grid<const T> x, Taps taps) {
  typedef typename Places<T>::Vec Place;
  typedef typename Places<T>::Entry Entry;
  constexpr int64_t kWide = kWidth<T>;
  const int64_t height = x.size[4], width = x.size[5], step = taps.stride[2];
  const int64_t rows = out.size[4], columns = out.size[5], padded = round_up(columns, kWide);
  const int64_t above = taps.padding[1], left = taps.padding[2];
  // A line starts `margin` entries before the row; tap k of output o is entry o + offset(k).
  const int64_t margin = ceil_div(left, step);
  const int64_t reach = (taps.kernel[2] - 1) * taps.dilation[2] / step + 1;
  const int64_t length = round_up(margin + std::max(padded + reach, ceil_div(width, step)), kWide);
  const int64_t lines = step * length;
  std::vector<int64_t> offsets, shifts;
  for (int64_t k = 0; k < taps.kernel[2]; ++k) {
    const int64_t shift = k * taps.dilation[2] - left, turn = ((shift % step) + step) % step;
    offsets.push_back(turn * length + margin + (shift - turn) / step);
    shifts.push_back(shift);
  }
  // The place of the first tap inside, which stands if nothing is larger than -infinity.
  auto first = [](int64_t start, int64_t dilation) {
    return start >= 0 ? start : start + ceil_div(-start, dilation) * dilation;
  };
  Scratch<Entry> starts(padded), ramp(padded);
  for (int64_t o = 0; o < columns; ++o) {
    starts.data()[o] = static_cast<Entry>(first(o * step - left, taps.dilation[2]));
    ramp.data()[o] = static_cast<Entry>(o * step);
  }
  const T least = -std::numeric_limits<T>::infinity();
  constexpr int64_t kChannels = 16;
  const int64_t channels = out.size[1] * out.size[2];
  context.parallel_for(ceil_div(channels, kChannels), [&](int64_t task) {
    Scratch<T> split(taps.kernel[1] * lines), best(padded);
    Scratch<Entry> places(padded);
    std::fill(split.data(), split.data() + taps.kernel[1] * lines, least);
    const int64_t end = std::min(channels, (task + 1) * kChannels);
    for (int64_t at = task * kChannels; at < end; ++at)
      for (int64_t o = 0; o < rows; ++o) {
        const int64_t top = o * taps.stride[1] - above;
        const int64_t base = first(top, taps.dilation[1]) * width;
        auto inside = [&](int64_t k) {
          const int64_t y = top + k * taps.dilation[1];
          return y >= 0 && y < height;
        };
        for (int64_t k = 0; k < taps.kernel[1]; ++k) {
          const int64_t u[3] = {0, top + k * taps.dilation[1], 0};
          if (inside(k))
            split_row(split.data() + k * lines + margin, length,
                      place(x, at / out.size[2], at % out.size[2], u), width, step);
        }
        for (int64_t q = 0; q < padded; q += kWide) {
          Reg<T> most = broadcast(least);
          Place where = load_places<T>(starts.data() + q) + static_cast<Entry>(base);
          for (int64_t k = 0; k < taps.kernel[1]; ++k) {
            if (!inside(k)) continue;
            const int64_t y = (top + k * taps.dilation[1]) * width;
            for (int64_t j = 0; j < taps.kernel[2]; ++j) {
              const Reg<T> value = load(split.data() + k * lines + offsets[j] + q);
              const auto larger = (value > most) | (value != value);
              most = larger ? value : most;
              const Place here =
                  load_places<T>(ramp.data() + q) + static_cast<Entry>(y + shifts[j]);
              where = larger ? here : where;
            }
          }
          store(best.data() + q, most);
          *reinterpret_cast<Place*>(places.data() + q) = where;
        }
        const int64_t row = (at * rows + o) * columns;
        std::copy(best.data(), best.data() + columns, out.data + row);
        std::copy(places.data(), places.data() + columns, index + row);
      }
  });
}
