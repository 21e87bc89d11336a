// D[o, i, k] = sum_{n, v} (sum_t S[v, n, o, t] X[n, i, k, t])^2, over the t where S is not zero.
//
// Parallel over blocks of output channels, each of which visits all samples in order; where there
// are few, over fixed runs of samples too, whose sums are added in order. So the bits do not depend
// on the number of threads. A tile of the patch visits all channels of a block in turn, while what
// it reads of the image stays in the nearest cache.

// total[o * pitch + c] += sum_v (sum_e values[e, v] * image[index[e] + vector c])^2 for C vectors,
// R columns v and all channels o, the rows of the entries.
template <class T, int R, int C>
void sparse_square_tile(const SparseRows<T>& entries, const T* image,
                        const typename Patch<T>::Vector* vectors, T* total, int64_t pitch) {
  const T* from[C];
  for (int c = 0; c < C; ++c) from[c] = image + vectors[c].offset;
  for (int64_t o = 0; o < entries.rows(); ++o, total += pitch) {
    const int64_t at = entries.begin[o], count = entries.begin[o + 1] - at;
    if (count == 0) continue;
    Reg<T> acc[R][C];
    sparse_sum<T, R, C>(acc, entries.index.data() + at, entries.values.data() + at * R, count,
                        from);
    for (int c = 0; c < C; ++c) {
      Reg<T> sum = load(total + c * kWidth<T>);
      for (int r = 0; r < R; ++r) sum += acc[r][c] * acc[r][c];
      store(total + c * kWidth<T>, sum);
    }
  }
}

template <class T>
void sparse_squared_sum(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                        Grid<const T> x, Taps taps) {
  const int64_t samples = s.size[1], rows = s.size[2];
  const Patch<T> patch(taps, s.size + 3, x.size + 3, out);
  const int64_t pitch = patch.count() * kWidth<T>;

  Scratch<T> images(samples * patch.size());
  context.parallel_for(samples, [&](int64_t n) {
    for (int64_t z = 0; z < x.size[3]; ++z)
      for (int64_t y = 0; y < x.size[4]; ++y)
        interleave(images.data() + n * patch.size() +
                       patch.entry(z + taps.padding[0], y + taps.padding[1], taps.padding[2]),
                   patch.channels, address(x, n, 0, std::array{z, y, int64_t(0)}), x.stride[5],
                   x.stride[2], x.size[2], x.size[5]);
  });

  const Cut columns(s.size[0], kTileRows), blocks(rows, tuning::kSparseRows);
  const int64_t runs = std::clamp<int64_t>(tuning::kSparseTasks / blocks.blocks, 1, samples);
  Scratch<T> totals(runs * rows * pitch);
  context.parallel_for(blocks.blocks * runs, [&](int64_t task) {
    const int64_t block = task % blocks.blocks, run = task / blocks.blocks;
    const int64_t first = blocks.begin(block), last = blocks.begin(block + 1);
    T* total = totals.data() + (run * rows + first) * pitch;
    SparseReader<T> reader(s, columns.largest());
    SparseRows<T> entries;
    const auto [begin, end] = run_range(samples, runs, run);
    for (int64_t n = begin; n < end; ++n)
      for (int64_t b = 0; b < columns.blocks; ++b) {
        reader.read(entries, n, columns.begin(b), columns.size(b), first, last);
        for (int64_t e = 0; e < entries.begin.back(); ++e)
          entries.index[e] = patch.positions[entries.index[e]];
        const Cut vectors(patch.count(), tile_columns(columns.size(b)));
        for (int64_t j = 0; j < vectors.blocks; ++j) {
          const auto tile = tile_for(columns.size(b), vectors.size(j),
                                     []<int R, int C>() { return &sparse_square_tile<T, R, C>; });
          tile(entries, images.data() + n * patch.size(), patch.vectors.data() + vectors.begin(j),
               total + vectors.begin(j) * kWidth<T>, pitch);
        }
      }
  });

  const T decay = update.decay, scale = update.scale;
  context.parallel_for(rows, [&](int64_t o) {
    T* total = totals.data() + o * pitch;
    for (int64_t run = 1; run < runs; ++run)
      for (int64_t i = 0; i < pitch; ++i) total[i] += total[run * rows * pitch + i];
    const int64_t* offset = patch.weight_offsets.data();
    for (const auto& vector : patch.vectors) {
      for (int64_t lane = 0; lane < vector.lanes; ++lane) {
        T& value = out.data[o * out.stride[1] + offset[lane]];
        value = (decay == 0 ? T(0) : decay * value) + scale * total[lane];
      }
      total += kWidth<T>;
      offset += kWidth<T>;
    }
  });
}
