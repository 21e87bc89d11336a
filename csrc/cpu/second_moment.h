// Symmetric second moments sum_k f_k f_k^T of feature vectors f_k, streamed through packed panels.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// Features come in pieces: piece u holds `counts[u]` vectors. Pieces are gathered into a chunk,
// packed as panels[panel][k][kPanel], and every pair of panels on or below the diagonal is
// multiplied once; the rest is its mirror. Packing and products are both shared among the threads,
// and each entry is summed by one thread in one order.

// Reads entries of the chunk being packed: feature j of vector k goes to panels at(j, k).
template <class T> struct Panels {
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
  constexpr int64_t kChunkBytes = 768 << 10;
  const int64_t panel_count = ceil_div(features, kPanel<T>);
  int64_t longest = 1;
  for (int64_t count : counts) longest = std::max(longest, count);
  const int64_t afford = kChunkBytes / std::max<int64_t>(1, panel_count * kPanel<T> * sizeof(T));
  const int64_t capacity = std::max(longest, std::clamp<int64_t>(afford, 16, 512));
  Scratch<T> storage(panel_count * kPanel<T> * capacity);
  const Panels<T> panels{storage.data(), capacity};
  bool first_chunk = true;
  for (size_t begin = 0; begin < counts.size() || first_chunk;) {
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
    context.parallel_for(panel_count * (panel_count + 1) / 2, [&](int64_t pair) {
      int64_t i = static_cast<int64_t>((std::sqrt(8.0 * pair + 1) - 1) / 2);
      while (i * (i + 1) / 2 > pair) --i;
      while ((i + 1) * (i + 2) / 2 <= pair) ++i;
      const int64_t j = pair - i * (i + 1) / 2;
      alignas(64) T tile[kPanel<T> * kPanel<T>];
      const int64_t rows = std::min<int64_t>(kPanel<T>, features - i * kPanel<T>);
      const int64_t columns = std::min<int64_t>(kPanel<T>, features - j * kPanel<T>);
      product_rows<T>(panels.column(i * kPanel<T>, 0), 1, kPanel<T>, rows,
                      panels.column(j * kPanel<T>, 0), used, tile, kPanel<T>, false);
      const T decay = first_chunk ? update.decay : 1, scale = update.scale;
      auto add = [&](int64_t row, int64_t column, T value) {
        T& at = out[row * out_row + column * out_column];
        at = (decay == 0 ? T(0) : decay * at) + scale * value;
      };
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          add(i * kPanel<T> + r, j * kPanel<T> + c, tile[r * kPanel<T> + c]);
          if (i != j) add(j * kPanel<T> + c, i * kPanel<T> + r, tile[r * kPanel<T> + c]);
        }
    });
    first_chunk = false;
    begin = end;
  }
}
