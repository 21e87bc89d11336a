// The largest entry of each window of an image's channels, and its index in the channel.
//
// As torch has it: a NaN is larger than anything before it, of equal entries the first counts. Rows
// of the input, dense as the result is, are sorted by their phase, so that a tap of the window is
// one offset for all outputs of a row. Parallel over channels.

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

// Where the taps of a row of outputs lie in a row of the input that is split by its phases.
struct PoolRow {
  int64_t step, padded, margin, length;  // an array of `length` a phase starts `margin` before it
  std::vector<int64_t> offsets, shifts;  // of a tap: output o reads entry o + offset, x = o * step
                                         // + shift

  PoolRow(const Taps& taps, int64_t width, int64_t columns, int64_t lanes)
      : step(taps.stride[2]),
        padded(round_up(columns, lanes)),
        margin(ceil_div(taps.padding[2], step)) {
    const int64_t reach = (taps.kernel[2] - 1) * taps.dilation[2] / step + 1;
    length = round_up(margin + std::max(padded + reach, ceil_div(width, step)), lanes);
    for (int64_t k = 0; k < taps.kernel[2]; ++k) {
      const int64_t shift = k * taps.dilation[2] - taps.padding[2];
      const int64_t phase = ((shift % step) + step) % step;
      offsets.push_back(phase * length + margin + (shift - phase) / step);
      shifts.push_back(shift);
    }
  }
};

// Integers of a number's size, as many as a vector has lanes.
template <class T>
using Index = decltype(Reg<T>{} > Reg<T>{});
template <class T, class Entry>
inline Index<T> load_index(const Entry* from) {
  Index<T> value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

template <class T>
void max_pool(const Context& context, Grid<T> out, int64_t* index, Grid<const T> x, Taps taps) {
  typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> Entry;
  const int64_t height = x.size[4], width = x.size[5], rows = out.size[4], columns = out.size[5];
  const PoolRow row(taps, width, columns, kWidth<T>);
  const int64_t lines = row.step * row.length;
  // The first tap inside the image, which counts if nothing is larger than -infinity.
  auto first = [](int64_t start, int64_t dilation) {
    return start >= 0 ? start : start + ceil_div(-start, dilation) * dilation;
  };
  Scratch<Entry> starts(row.padded), ramp(row.padded);
  for (int64_t o = 0; o < columns; ++o) {
    starts.data()[o] = first(o * row.step - taps.padding[2], taps.dilation[2]);
    ramp.data()[o] = o * row.step;
  }
  const T least = -std::numeric_limits<T>::infinity();
  constexpr int64_t kChannels = 16;
  const int64_t channels = out.size[1] * out.size[2];
  context.parallel_for(ceil_div(channels, kChannels), [&](int64_t task) {
    Scratch<T> split(taps.kernel[1] * lines), best(row.padded);
    Scratch<Entry> found(row.padded);
    std::fill_n(split.data(), taps.kernel[1] * lines, least);
    const int64_t begin = task * kChannels, end = std::min(channels, begin + kChannels);
    for (int64_t i = begin * rows; i < end * rows; ++i) {
      const int64_t at = i / rows, top = i % rows * taps.stride[1] - taps.padding[1];
      // Taps [k0, k1) are inside the image.
      const int64_t k0 = std::max<int64_t>(0, ceil_div(-top, taps.dilation[1]));
      const int64_t k1 = std::min(taps.kernel[1], ceil_div(height - top, taps.dilation[1]));
      for (int64_t k = k0; k < k1; ++k) {
        const std::array u{int64_t(0), top + k * taps.dilation[1], int64_t(0)};
        split_row(split.data() + k * lines + row.margin, row.length,
                  address(x, at / out.size[2], at % out.size[2], u), width, row.step);
      }
      for (int64_t q = 0; q < row.padded; q += kWidth<T>) {
        Reg<T> most = broadcast(least);
        Index<T> where = load_index<T>(starts.data() + q) +
                         static_cast<Entry>(first(top, taps.dilation[1]) * width);
        for (int64_t k = k0; k < k1; ++k)
          for (int64_t j = 0; j < taps.kernel[2]; ++j) {
            const Reg<T> value = load(split.data() + k * lines + row.offsets[j] + q);
            const Index<T> larger = (value > most) | (value != value);
            const int64_t here = (top + k * taps.dilation[1]) * width + row.shifts[j];
            most = larger ? value : most;
            where = larger ? load_index<T>(ramp.data() + q) + static_cast<Entry>(here) : where;
          }
        store(best.data() + q, most);
        __builtin_memcpy(found.data() + q, &where, sizeof(where));
      }
      std::copy_n(best.data(), columns, out.data + i * columns);
      std::copy_n(found.data(), columns, index + i * columns);
    }
  });
}
