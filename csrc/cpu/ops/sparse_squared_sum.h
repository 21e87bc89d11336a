// D[o, i, k] = sum_{n, v} (sum_t S[v, n, o, t] X[n, i, k, t])^2, over the t where S is not zero.
//
// Parallel over blocks of output channels, each of which visits all samples in order; where there
// are few, over fixed runs of samples too, whose sums are added in order. So the bits do not depend
// on the number of threads. A tile of the patch visits all channels of a block in turn, while what
// it reads of the image stays in the nearest cache.

// The entries of a block of output channels that are not zero.
template <class T>
struct SparseBlock {
  std::vector<int64_t> found, index, begin;
  std::vector<T> values;  // [channel][column block][entry][columns of the block]
  Lines<T> lines;

  explicit SparseBlock(const Grid<const T>& s) : lines(s, s.size[0]) {
    found.resize(lines.count());
  }

  void read(const Patch<T>& patch, const Cut& columns, int64_t n, int64_t first, int64_t last) {
    index.clear();
    values.clear();
    begin.assign(1, 0);
    for (int64_t o = first; o < last; ++o) {
      lines.read(0, columns.count, n, o);
      const int64_t count = lines.find(0, lines.count(), found.data());
      for (int64_t e = 0; e < count; ++e) index.push_back(patch.positions[found[e]]);
      begin.push_back(index.size());
      values.resize(index.size() * columns.count);
      T* to = values.data() + begin[o - first] * columns.count;
      for (int64_t b = 0; b < columns.blocks; ++b)
        for (int64_t e = 0; e < count; ++e)
          for (int64_t v = columns.begin(b); v < columns.begin(b + 1); ++v)
            *to++ = lines.at(v, found[e]);
    }
  }
};

// total[o * pitch + c] += sum_v (sum_e values[e, v] * image[index[e] + vector c])^2 for C vectors,
// all channels o of a block, and the R columns v from first_column on.
template <class T, int R, int C>
void sparse_square_tile(const SparseBlock<T>& block, int64_t columns, int64_t first_column,
                        const T* image, const typename Patch<T>::Vector* vectors, T* total,
                        int64_t pitch) {
  const T* from[C];
  for (int c = 0; c < C; ++c) from[c] = image + vectors[c].offset;
  const int64_t rows = static_cast<int64_t>(block.begin.size()) - 1;
  for (int64_t o = 0; o < rows; ++o, total += pitch) {
    const int64_t at = block.begin[o], entries = block.begin[o + 1] - at;
    if (entries == 0) continue;
    Reg<T> acc[R][C];
    sparse_sum<T, R, C>(acc, block.index.data() + at,
                        block.values.data() + at * columns + first_column * entries, entries, from);
    for (int c = 0; c < C; ++c) {
      Reg<T> sum = load(total + c * kWidth<T>);
      for (int r = 0; r < R; ++r) sum += acc[r][c] * acc[r][c];
      store(total + c * kWidth<T>, sum);
    }
  }
}

template <class T>
using SparseSquareTile = void (*)(const SparseBlock<T>&, int64_t, int64_t, const T*,
                                  const typename Patch<T>::Vector*, T*, int64_t);

template <class T>
void sparse_squared_sum(const Context& context, Grid<T> out, Update update, Grid<const T> s,
                        Grid<const T> x, Taps taps) {
  constexpr int64_t kBlockRows = 16, kTasks = 8;
  const int64_t samples = s.size[1], rows = s.size[2];
  const Patch<T> patch(taps, s.size + 3, x.size + 3, x.size[2]);
  const int64_t pitch = patch.count() * kWidth<T>;

  Scratch<T> images(samples * patch.size());
  context.parallel_for(samples, [&](int64_t n) {
    for (int64_t z = 0; z < x.size[3]; ++z)
      for (int64_t y = 0; y < x.size[4]; ++y)
        interleave(images.data() + n * patch.size() +
                       patch.entry(z + taps.padding[0], y + taps.padding[1], taps.padding[2]),
                   patch.channels, x.data + n * x.stride[1] + z * x.stride[3] + y * x.stride[4],
                   x.stride[5], x.stride[2], x.size[2], x.size[5]);
  });

  const Cut columns(s.size[0], kSparseColumns);
  struct Tile {
    SparseSquareTile<T> run;
    int64_t first;
  };
  std::vector<std::vector<Tile>> tiles(columns.blocks);
  for (int64_t b = 0; b < columns.blocks; ++b) {
    const Cut vectors(patch.count(), sparse_vectors(columns.size(b)));
    for (int64_t j = 0; j < vectors.blocks; ++j)
      tiles[b].push_back({sparse_tile_for(columns.size(b), vectors.size(j),
                                          []<int R, int C>() -> SparseSquareTile<T> {
                                            return &sparse_square_tile<T, R, C>;
                                          }),
                          vectors.begin(j)});
  }

  const Cut blocks(rows, kBlockRows);
  const int64_t runs = std::clamp<int64_t>(kTasks / blocks.blocks, 1, samples);
  Scratch<T> totals(runs * rows * pitch);
  context.parallel_for(blocks.blocks * runs, [&](int64_t task) {
    const int64_t block = task % blocks.blocks, run = task / blocks.blocks;
    const int64_t first = blocks.begin(block), last = blocks.begin(block + 1);
    T* total = totals.data() + (run * rows + first) * pitch;
    SparseBlock<T> entries(s);
    const auto [begin, end] = run_range(samples, runs, run);
    for (int64_t n = begin; n < end; ++n) {
      entries.read(patch, columns, n, first, last);
      const T* image = images.data() + n * patch.size();
      for (int64_t b = 0; b < columns.blocks; ++b)
        for (const Tile& tile : tiles[b])
          tile.run(entries, columns.count, columns.begin(b), image,
                   patch.vectors.data() + tile.first, total + tile.first * kWidth<T>, pitch);
    }
  });

  const T decay = update.decay, scale = update.scale;
  const auto offsets = patch.weight_offsets(taps, out);
  context.parallel_for(blocks.blocks, [&](int64_t block) {
    for (int64_t o = blocks.begin(block); o < blocks.begin(block + 1); ++o) {
      T* total = totals.data() + o * pitch;
      for (int64_t run = 1; run < runs; ++run)
        for (int64_t i = 0; i < pitch; ++i) total[i] += total[run * rows * pitch + i];
      T* to = out.data + o * out.stride[1];
      const int64_t* offset = offsets.data();
      for (const auto& vector : patch.vectors) {
        for (int64_t lane = 0; lane < vector.lanes; ++lane) {
          T& value = to[offset[lane]];
          value = (decay == 0 ? T(0) : decay * value) + scale * total[lane];
        }
        total += kWidth<T>;
        offset += kWidth<T>;
      }
    }
  });
}
