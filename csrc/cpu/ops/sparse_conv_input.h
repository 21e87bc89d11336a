// out[v, n, i, u] = sum_{o, k, t : t * stride - padding + k * dilation = u} W[o, i, k] s[v, n, o,
// t] over the entries of s that are not zero.
//
// Parallel over samples and blocks of columns. The weight is cut into tiles [o][some of (k, i)]; a
// tile visits all positions of a sample in turn and stays in the nearest cache. For each position
// it sums over the output channels that are not zero there, and adds its part of the patch to the
// block's images, which are laid out as [z, y, x, i] and turned when all is added.

// The entries of a block of columns that are not zero, by position.
template <class T>
struct SparsePositions {
  std::vector<int64_t> index, begin, found, channel_begin;
  std::vector<T> values;  // [entry][column]
  Lines<T> lines;

  explicit SparsePositions(const Grid<const T>& s) : lines(s, kSparseColumns) {}

  // Positions [from, to) of columns [first, first + columns); index = the channel times `pitch`.
  void read(int64_t n, int64_t first, int64_t columns, int64_t channels, int64_t from, int64_t to,
            int64_t pitch) {
    begin.assign(to - from + 2, 0);
    channel_begin.assign(1, 0);
    found.resize((to - from) * channels);
    int64_t count = 0;
    for (int64_t o = 0; o < channels; ++o) {
      lines.read(first, columns, n, o);
      const int64_t more = lines.find(from, to, found.data() + count);
      for (int64_t e = count; e < count + more; ++e) ++begin[found[e] - from + 2];
      count += more;
      channel_begin.push_back(count);
    }
    for (size_t t = 2; t < begin.size(); ++t) begin[t] += begin[t - 1];
    index.resize(count);
    values.resize(count * columns);
    // begin[t + 1] runs from the first entry of t to the first of t + 1.
    for (int64_t o = 0; o < channels; ++o) {
      lines.read(first, columns, n, o);
      for (int64_t e = channel_begin[o]; e < channel_begin[o + 1]; ++e) {
        const int64_t at = begin[found[e] - from + 1]++;
        index[at] = o * pitch;
        for (int64_t v = 0; v < columns; ++v) values[at * columns + v] = lines.at(v, found[e]);
      }
    }
  }
};

// Adds C vectors of the patches of positions [from, to) to the images of R columns, `size` apart.
template <class T, int R, int C>
void sparse_patch_tile(const SparsePositions<T>& entries, const Patch<T>& patch, int64_t from,
                       int64_t to, const T* weight, const typename Patch<T>::Vector* vectors,
                       T* images) {
  const int64_t size = patch.size();
  const T* part[C];
  bool whole = true;
  for (int c = 0; c < C; ++c) {
    part[c] = weight + c * kWidth<T>;
    whole = whole && vectors[c].lanes == kWidth<T>;
  }
  for (int64_t t = from; t < to; ++t) {
    const int64_t at = entries.begin[t - from], count = entries.begin[t - from + 1] - at;
    if (count == 0) continue;
    Reg<T> acc[R][C];
    sparse_sum<T, R, C>(acc, entries.index.data() + at, entries.values.data() + at * R, count,
                        part);
    T* image = images + patch.positions[t];
    for (int r = 0; r < R; ++r, image += size)
      for (int c = 0; c < C; ++c) {
        T* add = image + vectors[c].offset;
        if (whole || vectors[c].lanes == kWidth<T>)
          store(add, load(add) + acc[r][c]);
        else
          for (int64_t lane = 0; lane < vectors[c].lanes; ++lane) add[lane] += acc[r][c][lane];
      }
  }
}

template <class T>
using SparsePatchTile = void (*)(const SparsePositions<T>&, const Patch<T>&, int64_t, int64_t,
                                 const T*, const typename Patch<T>::Vector*, T*);

// out <- decay * out + scale * image for one column of one sample.
template <class T>
void write_image(const Grid<T>& out, T* to, Update update, const Patch<T>& patch, const Taps& taps,
                 const T* image) {
  const T decay = update.decay, scale = update.scale;
  std::vector<int64_t> offsets(out.size[5]);
  for (int64_t x = 0; x < out.size[5]; ++x) offsets[x] = x * patch.channels;
  for (int64_t z = 0; z < out.size[3]; ++z)
    for (int64_t y = 0; y < out.size[4]; ++y) {
      const T* from =
          image + patch.entry(z + taps.padding[0], y + taps.padding[1], taps.padding[2]);
      T* row = to + z * out.stride[3] + y * out.stride[4];
      if (decay == 0 && scale == 1 && out.stride[5] == 1) {
        gather_lines(row, out.stride[2], from, offsets.data(), out.size[5], patch.channels);
        continue;
      }
      for (int64_t i = 0; i < patch.channels; ++i)
        for (int64_t x = 0; x < out.size[5]; ++x) {
          T& value = row[i * out.stride[2] + x * out.stride[5]];
          value = (decay == 0 ? T(0) : decay * value) + scale * from[offsets[x] + i];
        }
    }
}

template <class T>
void sparse_conv_input(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                       Grid<const T> weight, Taps taps) {
  constexpr int64_t kPositions = 256;  // listed at a time
  const int64_t samples = s.size[1], channels = s.size[2];
  const Patch<T> patch(taps, s.size + 3, out.size + 3, out.size[2]);
  const int64_t positions = patch.positions.size();
  const Cut columns(s.size[0], kSparseColumns);

  // All blocks of columns have the same tiles, those of the largest block.
  const Cut tiles(patch.count(), sparse_vectors(ceil_div(columns.count, columns.blocks)));
  const int64_t pitch = ceil_div(patch.count(), tiles.blocks) * kWidth<T>;
  const auto offsets = patch.weight_offsets(taps, weight);
  Scratch<T> packed(tiles.blocks * channels * pitch);
  context.parallel_for(tiles.blocks, [&](int64_t tile) {
    const int64_t* offset = offsets.data() + tiles.begin(tile) * kWidth<T>;
    for (int64_t o = 0; o < channels; ++o) {
      T* to = packed.data() + (tile * channels + o) * pitch;
      const T* from = weight.data + o * weight.stride[1];
      for (int64_t i = 0; i < tiles.size(tile) * kWidth<T>; ++i) to[i] = from[offset[i]];
    }
  });

  context.parallel_for(samples * columns.blocks, [&](int64_t unit) {
    const int64_t n = unit / columns.blocks, block = unit % columns.blocks;
    const int64_t first = columns.begin(block), count = columns.size(block);
    Scratch<T> images(count * patch.size());
    SparsePositions<T> entries(s);
    for (int64_t from = 0; from < positions; from += kPositions) {
      const int64_t to = std::min(from + kPositions, positions);
      entries.read(n, first, count, channels, from, to, pitch);
      for (int64_t tile = 0; tile < tiles.blocks; ++tile) {
        const auto run = sparse_tile_for(
            count, tiles.size(tile),
            []<int R, int C>() -> SparsePatchTile<T> { return &sparse_patch_tile<T, R, C>; });
        run(entries, patch, from, to, packed.data() + tile * channels * pitch,
            patch.vectors.data() + tiles.begin(tile), images.data());
      }
    }
    for (int64_t v = 0; v < count; ++v)
      write_image(out, out.data + (first + v) * out.stride[0] + n * out.stride[1], update, patch,
                  taps, images.data() + v * patch.size());
  });
}
