// Symmetric second moments sum_k f_k f_k^T of feature vectors f_k (SYRK), streamed through packed
// panels. lag_moment.h has those of patches, by products that taps share.
//
// Features come in pieces: piece u holds `counts[u]` vectors. Pieces are gathered into a chunk,
// packed as panels[panel][k][kPanel], and every pair of panels on or below the diagonal is
// multiplied once, into tiles of its own; the other half is their mirror. Each entry is summed in
// one order, whatever the threads.

// The panels of a chunk: feature j of vector k is at column(j, k).
template <class T>
struct Panels {
  T* data;
  int64_t capacity;  // vectors a panel has room for
  T* column(int64_t j, int64_t k) const {
    return data + (j / kPanel<T> * capacity + k) * kPanel<T> + j % kPanel<T>;
  }
};

// A tile of the moments: features [row, row + rows) by [column, column + columns), column <= row.
struct MomentTile {
  int64_t row, column, rows, columns;

  // Tile i * (i + 1) / 2 + j is row panel i with column panel j.
  MomentTile(int64_t tile, int64_t features, int64_t panel) {
    int64_t i = static_cast<int64_t>((std::sqrt(8.0 * tile + 1) - 1) / 2);
    while (i * (i + 1) / 2 > tile) --i;
    while ((i + 1) * (i + 2) / 2 <= tile) ++i;
    row = i * panel;
    column = (tile - i * (i + 1) / 2) * panel;
    rows = std::min(panel, features - row);
    columns = std::min(panel, features - column);
  }

  // sums [kPanel][kPanel] += products of a chunk's vectors.
  template <class T>
  void multiply(const Panels<T>& panels, int64_t used, T* sums) const {
    for (int64_t k = 0; k < used; k += tuning::kProductDepth)
      outer_panel<T>(Strided<T>{panels.column(row, k), 1, kPanel<T>, panels.column(column, k),
                                kPanel<T>, std::min(tuning::kProductDepth, used - k)},
                     rows, columns, Store<T>{sums, kPanel<T>, true});
  }

  // out <- decay * out + scale * sums, and the mirror of a tile below the diagonal.
  template <class T>
  void write(T* out, int64_t out_row, int64_t out_column, Update update, const T* sums) const {
    const T decay = update.decay, scale = update.scale;
    auto put = [&](int64_t r, int64_t c, T value) {
      T& at = out[r * out_row + c * out_column];
      at = (decay == 0 ? T(0) : decay * at) + scale * value;
    };
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) put(row + r, column + c, sums[r * kPanel<T> + c]);
    for (int64_t c = 0; row != column && c < columns; ++c)
      for (int64_t r = 0; r < rows; ++r) put(column + c, row + r, sums[r * kPanel<T> + c]);
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
  constexpr int64_t kFewFeatures = 128, kShares = 16, kArea = kPanel<T> * kPanel<T>;
  const int64_t panel_count = ceil_div(features, kPanel<T>), pieces = counts.size();
  const int64_t shares = features <= kFewFeatures ? std::clamp<int64_t>(pieces, 1, kShares) : 1;
  const int64_t longest = counts.empty() ? 1 : *std::max_element(counts.begin(), counts.end());
  const int64_t vector = std::max<int64_t>(1, panel_count * kPanel<T> * sizeof(T));
  const int64_t bytes = shares > 1 ? tuning::kShareBytes : tuning::kChunkBytes;
  const int64_t afford = std::clamp<int64_t>(bytes / vector, 16, 4096);
  const int64_t capacity = std::max(longest, std::min(afford, ceil_div(pieces, shares) * longest));
  const int64_t tiles = panel_count * (panel_count + 1) / 2;
  Scratch<T> sums(shares * tiles * kArea);
  // parallel(tasks, body) runs what a share's threads do together: one of several has one thread.
  auto add_share = [&](int64_t share, auto parallel) {
    Scratch<T> storage(panel_count * kPanel<T> * capacity);
    const Panels<T> panels{storage.data(), capacity};
    const int64_t last = pieces * (share + 1) / shares;
    for (int64_t first = pieces * share / shares, next = first; first < last; first = next) {
      std::vector<int64_t> starts;
      int64_t used = 0;
      for (; next < last && used + counts[next] <= capacity; used += counts[next++])
        starts.push_back(used);
      parallel(starts.size() * pack_tasks, [&](int64_t task) {
        const int64_t piece = task / pack_tasks;
        pack(panels, first + piece, starts[piece], task % pack_tasks);
      });
      parallel(tiles, [&](int64_t tile) {
        MomentTile(tile, features, kPanel<T>)
            .multiply(panels, used, sums.data() + (share * tiles + tile) * kArea);
      });
    }
  };
  if (shares == 1)
    add_share(0, context.parallel_for);
  else
    context.parallel_for(shares, [&](int64_t share) {
      add_share(share, [](int64_t tasks, auto body) {
        for (int64_t task = 0; task < tasks; ++task) body(task);
      });
    });
  context.parallel_for(tiles, [&](int64_t tile) {
    T* total = sums.data() + tile * kArea;
    for (int64_t share = 1; share < shares; ++share)
      for (int64_t e = 0; e < kArea; ++e) total[e] += total[share * tiles * kArea + e];
    MomentTile(tile, features, kPanel<T>).write(out, out_row, out_column, update, total);
  });
}
