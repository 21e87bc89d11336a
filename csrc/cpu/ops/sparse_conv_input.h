// out[v, n, i, u] = sum_{o, k, t : t * stride - padding + k * dilation = u} W[o, i, k] s[v, n, o,
// t] over the entries of s that are not zero.
//
// Parallel over samples and blocks of columns. The weight is cut into tiles [o][some of (k, i)]; a
// tile visits some positions of a sample in turn and stays in the nearest cache. For each position
// it sums over the output channels that are not zero there, and adds its part of the patch to the
// block's images, which are laid out as [z, y, x, i] and transposed when all is added.

// Adds C vectors of the patches of positions [from, to) to the images of R columns, `size` apart.
// The entries' rows are positions, their indices places in `weight`.
template <class T, int R, int C>
void sparse_patch_tile(const SparseRows<T>& entries, const Patch<T>& patch, int64_t from,
                       int64_t to, const T* weight, const typename Patch<T>::Vector* vectors,
                       T* images) {
  const int64_t size = patch.size();
  const T* part[C];
  for (int c = 0; c < C; ++c) part[c] = weight + c * kWidth<T>;
  for (int64_t t = from; t < to; ++t) {
    const int64_t at = entries.begin[t], count = entries.begin[t + 1] - at;
    if (count == 0) continue;
    Reg<T> acc[R][C];
    sparse_sum<T, R, C>(acc, entries.index.data() + at, entries.values.data() + at * R, count,
                        part);
    T* image = images + patch.positions[t];
    for (int r = 0; r < R; ++r, image += size)
      for (int c = 0; c < C; ++c) {
        T* add = image + vectors[c].offset;
        if (vectors[c].lanes == kWidth<T>)
          store(add, load(add) + acc[r][c]);
        else
          for (int64_t lane = 0; lane < vectors[c].lanes; ++lane) add[lane] += acc[r][c][lane];
      }
  }
}

// out <- decay * out + scale * image for column v of sample n; `row` has room for a row.
template <class T>
void write_image(const Grid<T>& out, int64_t v, int64_t n, Update update, const Patch<T>& patch,
                 const Taps& taps, const T* image, T* row) {
  const int64_t nx = out.size[5];
  for (int64_t z = 0; z < out.size[3]; ++z)
    for (int64_t y = 0; y < out.size[4]; ++y) {
      const T* from =
          image + patch.entry(z + taps.padding[0], y + taps.padding[1], taps.padding[2]);
      T* to = address(out, n, 0, std::array{z, y, int64_t(0)}) + v * out.stride[0];
      if (update.decay == 0 && update.scale == 1 && out.stride[5] == 1) {
        interleave(to, out.stride[2], from, 1, patch.channels, nx, patch.channels);
        continue;
      }
      interleave(row, nx, from, 1, patch.channels, nx, patch.channels);
      for (int64_t i = 0; i < patch.channels; ++i)
        write_row<T>(to + i * out.stride[2], out.stride[5], update, row + i * nx, {}, nullptr, 0,
                     nx);
    }
}

template <class T>
void sparse_conv_input(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                       Grid<const T> weight, Taps taps) {
  const int64_t samples = s.size[1], channels = s.size[2];
  const Patch<T> patch(taps, s.size + 3, out.size + 3, weight);
  const int64_t positions = patch.positions.size();
  const Cut columns(s.size[0], kTileRows);

  // All blocks of columns have the same tiles, those of the largest block.
  const Cut tiles(patch.count(), tile_columns(columns.largest()));
  const int64_t pitch = tiles.largest() * kWidth<T>;
  Scratch<T> packed(tiles.blocks * channels * pitch);
  context.parallel_for(tiles.blocks, [&](int64_t tile) {
    const int64_t* offset = patch.weight_offsets.data() + tiles.begin(tile) * kWidth<T>;
    for (int64_t o = 0; o < channels; ++o) {
      T* to = packed.data() + (tile * channels + o) * pitch;
      const T* from = weight.data + o * weight.stride[1];
      for (int64_t i = 0; i < tiles.size(tile) * kWidth<T>; ++i) to[i] = from[offset[i]];
    }
  });

  context.parallel_for(samples * columns.blocks, [&](int64_t unit) {
    const int64_t n = unit / columns.blocks, block = unit % columns.blocks;
    const int64_t first = columns.begin(block), count = columns.size(block);
    SparseRows<T> by_channel;
    SparseReader<T>(s, count).read(by_channel, n, first, count, 0, channels);
    SparseRows<T> entries = by_channel.transposed(positions);
    for (int64_t& index : entries.index) index *= pitch;
    Scratch<T> images(count * patch.size()), row(patch.channels * out.size[5]);
    for (int64_t from = 0; from < positions; from += tuning::kSparsePositions)
      for (int64_t tile = 0; tile < tiles.blocks; ++tile) {
        const auto run = tile_for(count, tiles.size(tile),
                                  []<int R, int C>() { return &sparse_patch_tile<T, R, C>; });
        run(entries, patch, from, std::min(from + tuning::kSparsePositions, positions),
            packed.data() + tile * channels * pitch, patch.vectors.data() + tiles.begin(tile),
            images.data());
      }
    for (int64_t v = 0; v < count; ++v)
      write_image(out, first + v, n, update, patch, taps, images.data() + v * patch.size(),
                  row.data());
  });
}
