// Symmetric second moments sum_k f_k f_k^T of feature vectors f_k, streamed through packed panels.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// Features come in pieces: piece u holds `counts[u]` vectors. Pieces are gathered into a chunk,
// packed as panels[panel][k][kPanel], and every pair of panels on or below the diagonal is
// multiplied once, into tiles of its own; the other half is their mirror. Packing and products are
// both shared among the threads, and each entry is summed by one thread in one order.

// Reads entries of the chunk being packed: feature j of vector k goes to panels at(j, k).
template <class T>
struct Panels {
  T* data;
  int64_t capacity;  // vectors a panel has room for
  T* column(int64_t j, int64_t k) const {
    return data + (j / kPanel<T> * capacity + k) * kPanel<T> + j % kPanel<T>;
  }
};

// pack(panels, piece, first, task) writes the piece's vectors from row `first` of the chunk on;
// `task` in [0, pack_tasks) says which share of its features.
template <class T, class Pack>
void second_moment(const Context& context, T* out, int64_t out_row, int64_t out_column,
                   Update update, int64_t features, const std::vector<int64_t>& counts,
                   int64_t pack_tasks, Pack pack) {
  // All panels of a chunk stay in the second-level cache; few of them may be long.
  constexpr int64_t kChunkBytes = 320 << 10, kLongBytes = 512 << 10, kFewFeatures = 128;
  constexpr int64_t kDepth = 256;  // of a product: a pair of panels stays in the first-level cache
  const int64_t panel_count = ceil_div(features, kPanel<T>);
  int64_t longest = 1;
  for (int64_t count : counts) longest = std::max(longest, count);
  const int64_t bytes = features <= kFewFeatures ? kLongBytes : kChunkBytes;
  const int64_t afford = bytes / std::max<int64_t>(1, panel_count * kPanel<T> * sizeof(T));
  const int64_t capacity = std::max(longest, std::clamp<int64_t>(afford, 16, 4096));
  Scratch<T> storage(panel_count * kPanel<T> * capacity);
  const Panels<T> panels{storage.data(), capacity};
  const int64_t pairs = panel_count * (panel_count + 1) / 2, area = kPanel<T> * kPanel<T>;
  Scratch<T> tiles(pairs * area);
  // Pair number i * (i + 1) / 2 + j is row panel i with column panel j <= i.
  auto each_pair = [&](auto body) {
    context.parallel_for(pairs, [&](int64_t pair) {
      int64_t i = static_cast<int64_t>((std::sqrt(8.0 * pair + 1) - 1) / 2);
      while (i * (i + 1) / 2 > pair) --i;
      while ((i + 1) * (i + 2) / 2 <= pair) ++i;
      body(tiles.data() + pair * area, i * kPanel<T>, (pair - i * (i + 1) / 2) * kPanel<T>,
           std::min<int64_t>(kPanel<T>, features - i * kPanel<T>));
    });
  };
  for (size_t begin = 0; begin < counts.size();) {
    size_t end = begin;
    std::vector<int64_t> starts;
    int64_t used = 0;
    while (end < counts.size() && used + counts[end] <= capacity) {
      starts.push_back(used);
      used += counts[end++];
    }
    context.parallel_for((end - begin) * pack_tasks, [&](int64_t task) {
      const int64_t piece = task / pack_tasks;
      pack(panels, begin + piece, starts[piece], task % pack_tasks);
    });
    each_pair([&](T* tile, int64_t row, int64_t column, int64_t rows) {
      for (int64_t k = 0; k < used; k += kDepth)
        product_rows<T>(panels.column(row, k), 1, kPanel<T>, rows, panels.column(column, k),
                        features - column, std::min(kDepth, used - k), tile, kPanel<T>, true);
    });
    begin = end;
  }
  each_pair([&](const T* tile, int64_t row, int64_t column, int64_t rows) {
    const int64_t columns = std::min<int64_t>(kPanel<T>, features - column);
    const T decay = update.decay, scale = update.scale;
    auto add = [&](int64_t r, int64_t c, T value) {
      T& at = out[r * out_row + c * out_column];
      at = (decay == 0 ? T(0) : decay * at) + scale * value;
    };
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) add(row + r, column + c, tile[r * kPanel<T> + c]);
    if (row == column) return;
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t r = 0; r < rows; ++r) add(column + c, row + r, tile[r * kPanel<T> + c]);
  });
}
