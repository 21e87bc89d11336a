// out[v, n, j] = sum_f rows[v, f] factor[n, f] weight[f, j].
//
// Parallel over samples and panels of j. A panel of the weight is scaled as it is packed; blocks of
// rows pass over it without the zeros beside their band, as unit columns and triangular factors
// have them.

template <class T>
void scaled_product(const Context& context, Grid<T> out, Update update, Grid<const T> rows,
                    Grid<const T> factor, Grid<const T> weight) {
  constexpr int64_t kBlock = 4 * kRows, kDepth = tuning::kProductDepth;
  const int64_t count = rows.size[1], features = rows.size[2], columns = weight.size[2];
  const int64_t blocks = ceil_div(count, kBlock), panels = ceil_div(columns, kPanel<T>);
  // First and last + 1 of the features that are not zero in each block.
  std::vector<std::pair<int64_t, int64_t>> bands(blocks);
  context.parallel_for(blocks, [&](int64_t block) {
    int64_t first = features, last = 0;
    for (int64_t v = block * kBlock; v < std::min(count, (block + 1) * kBlock); ++v) {
      const T* row = rows.data + v * rows.stride[1];
      int64_t f = 0;
      while (f < first && row[f] == 0) ++f;
      first = f;
      for (f = features; f > last && row[f - 1] == 0;) --f;
      last = f;
    }
    bands[block] = {first, last};
  });
  context.parallel_for(factor.size[1] * panels, [&](int64_t task) {
    const int64_t n = task / panels, from = task % panels * kPanel<T>;
    const int64_t width = std::min<int64_t>(kPanel<T>, columns - from);
    Scratch<T> panel(features * kPanel<T>);
    alignas(64) T tile[kBlock * kPanel<T>];
    const T* scales = factor.data + n * factor.stride[1];
    for (int64_t f = 0; f < features; ++f) {
      const T* entries = weight.data + f * weight.stride[1] + from;
      const T scale = scales[f];
      for (int64_t j = 0; j < width; ++j) panel.data()[f * kPanel<T> + j] = scale * entries[j];
    }
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t start = block * kBlock, size = std::min(kBlock, count - start);
      const auto [first, last] = bands[block];
      if (first >= last) std::fill(tile, tile + size * kPanel<T>, T(0));
      for (int64_t f = first; f < last; f += kDepth)
        outer_panel<T>(
            Strided<T>{rows.data + start * rows.stride[1] + f, rows.stride[1], 1,
                       panel.data() + f * kPanel<T>, kPanel<T>, std::min(kDepth, last - f)},
            size, width, Store<T>{tile, kPanel<T>, f > first});
      for (int64_t v = 0; v < size; ++v)
        write_row<T>(out.data + (start + v) * out.stride[0] + n * out.stride[1] + from, 1, update,
                     tile + v * kPanel<T>, {}, nullptr, 0, width);
    }
  });
}
