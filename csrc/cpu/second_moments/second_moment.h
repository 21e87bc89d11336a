// Symmetric second moments sum_k f_k f_k^T of feature vectors f_k, streamed through packed panels.
//
// Features come in pieces: piece u holds `counts[u]` vectors. Pieces are gathered into a chunk,
// packed as panels[panel][k][kPanel], and every pair of panels on or below the diagonal is
// multiplied once, into tiles of its own; the other half is their mirror. Each entry is summed in
// one order, whatever the threads.

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
//
// Of few features the tiles are few and small: fixed shares of the pieces have tiles of their own,
// which are added in order. Else packing and products of a chunk are both shared among the threads.
template <class T, class Pack>
void second_moment(const Context& context, T* out, int64_t out_row, int64_t out_column,
                   Update update, int64_t features, const std::vector<int64_t>& counts,
                   int64_t pack_tasks, Pack pack) {
  // All panels of a chunk stay in the second-level cache.
  constexpr int64_t kChunkBytes = 320 << 10, kShareBytes = 96 << 10;
  constexpr int64_t kFewFeatures = 128, kShares = 16;
  constexpr int64_t kDepth = 256;  // of a product: a pair of panels stays in the first-level cache
  const int64_t panel_count = ceil_div(features, kPanel<T>), pieces = counts.size();
  const int64_t shares = features <= kFewFeatures ? std::clamp<int64_t>(pieces, 1, kShares) : 1;
  int64_t longest = 1;
  for (int64_t count : counts) longest = std::max(longest, count);
  const int64_t vector = std::max<int64_t>(1, panel_count * kPanel<T> * sizeof(T));
  const int64_t afford =
      std::clamp<int64_t>((shares > 1 ? kShareBytes : kChunkBytes) / vector, 16, 4096);
  const int64_t capacity = std::max(longest, std::min(afford, ceil_div(pieces, shares) * longest));
  const int64_t pairs = panel_count * (panel_count + 1) / 2, area = kPanel<T> * kPanel<T>;
  Scratch<T> tiles(shares * pairs * area);
  // body(first, starts, used) for a chunk of pieces at a time, out of [begin, end).
  auto each_chunk = [&](int64_t begin, int64_t end, auto body) {
    while (begin < end) {
      const int64_t first = begin;
      std::vector<int64_t> starts;
      int64_t used = 0;
      for (; begin < end && used + counts[begin] <= capacity; used += counts[begin++])
        starts.push_back(used);
      body(first, starts, used);
    }
  };
  // Pair number i * (i + 1) / 2 + j is row panel i with column panel j <= i: body(row, column,
  // rows).
  auto at_pair = [&](int64_t pair, auto body) {
    int64_t i = static_cast<int64_t>((std::sqrt(8.0 * pair + 1) - 1) / 2);
    while (i * (i + 1) / 2 > pair) --i;
    while ((i + 1) * (i + 2) / 2 <= pair) ++i;
    body(i * kPanel<T>, (pair - i * (i + 1) / 2) * kPanel<T>,
         std::min<int64_t>(kPanel<T>, features - i * kPanel<T>));
  };
  auto multiply = [&](const Panels<T>& panels, int64_t used, int64_t pair, T* tile) {
    at_pair(pair, [&](int64_t row, int64_t column, int64_t rows) {
      for (int64_t k = 0; k < used; k += kDepth)
        outer_panel<T>(Strided<T>{panels.column(row, k), 1, kPanel<T>, panels.column(column, k),
                                  kPanel<T>, std::min(kDepth, used - k)},
                       rows, features - column, Store<T>{tile, kPanel<T>, true});
    });
  };
  if (shares > 1) {
    context.parallel_for(shares, [&](int64_t share) {
      Scratch<T> storage(panel_count * kPanel<T> * capacity);
      const Panels<T> panels{storage.data(), capacity};
      each_chunk(pieces * share / shares, pieces * (share + 1) / shares,
                 [&](int64_t first, const std::vector<int64_t>& starts, int64_t used) {
                   for (size_t i = 0; i < starts.size(); ++i)
                     for (int64_t task = 0; task < pack_tasks; ++task)
                       pack(panels, first + i, starts[i], task);
                   for (int64_t pair = 0; pair < pairs; ++pair)
                     multiply(panels, used, pair, tiles.data() + (share * pairs + pair) * area);
                 });
    });
  } else {
    Scratch<T> storage(panel_count * kPanel<T> * capacity);
    const Panels<T> panels{storage.data(), capacity};
    each_chunk(0, pieces, [&](int64_t first, const std::vector<int64_t>& starts, int64_t used) {
      context.parallel_for(starts.size() * pack_tasks, [&](int64_t task) {
        const int64_t piece = task / pack_tasks;
        pack(panels, first + piece, starts[piece], task % pack_tasks);
      });
      context.parallel_for(
          pairs, [&](int64_t pair) { multiply(panels, used, pair, tiles.data() + pair * area); });
    });
  }
  context.parallel_for(pairs, [&](int64_t pair) {
    T* tile = tiles.data() + pair * area;
    for (int64_t share = 1; share < shares; ++share)
      for (int64_t e = 0; e < area; ++e) tile[e] += tile[share * pairs * area + e];
    at_pair(pair, [&](int64_t row, int64_t column, int64_t rows) {
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
  });
}
