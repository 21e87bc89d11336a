// D[a, b, k] = sum_{v, l} (sum_t small[v, a, t, l] large[v, b, t * stride - padding + k * dilation,
// l])^2 over windows of many lanes.
//
// A tile is some rows a times some columns (b, kx) of one row (kz, ky) of the kernel, for one
// vector of lanes: its sums over t live in registers, are squared and added to D's vector of lanes.
// Parallel over blocks of the weight and fixed runs of lanes, whose sums are added in order: the
// bits do not depend on the number of threads.

// Where one position's entries lie in the packed windows.
struct WindowEntries {
  int64_t small, large;
};

// total[r * pitch + to[c]] += (sum over positions of small * large)^2 in each of `vectors` of
// lanes.
template <class T, int R, int C>
void square_tile(std::span<const WindowEntries> positions, const T* small, int64_t row,
                 const T* const* columns, int64_t vectors, T* total, int64_t pitch,
                 const int64_t* to) {
  for (int64_t lane = 0; lane < vectors * kWidth<T>; lane += kWidth<T>) {
    Reg<T> acc[R][C] = {};
    const WindowEntries *at = positions.data(), *const end = at + positions.size();
    do {
      Reg<T> rows[R];
      for (int r = 0; r < R; ++r) rows[r] = load(small + at->small + r * row + lane);
      for (int c = 0; c < C; ++c) {
        const Reg<T> column = load(columns[c] + at->large + lane);
        for (int r = 0; r < R; ++r) acc[r][c] += rows[r] * column;
      }
    } while (++at < end);
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) {
        T* sum = total + r * pitch + to[c];
        store(sum, load(sum) + acc[r][c] * acc[r][c]);
      }
  }
}

// The positions [begin, end) of an axis at which a tap meets the large window, and the entry that
// it meets at position 0.
struct Meeting {
  int64_t tap, begin, end, entry;
};

inline std::vector<Meeting> meetings(const Taps& taps, int d, int64_t positions, int64_t source) {
  std::vector<Meeting> found;
  for (int64_t k = 0; k < taps.kernel[d]; ++k) {
    const int64_t entry = k * taps.dilation[d] - taps.padding[d];
    const int64_t begin = std::max<int64_t>(0, ceil_div(-entry, taps.stride[d]));
    const int64_t end = std::min(positions, ceil_div(source - entry, taps.stride[d]));
    if (begin < end) found.push_back({k, begin, end, entry});
  }
  return found;
}

// How the sums are cut, and what all workers read.
template <class T>
struct WindowSums {
  Correlation<T> p;
  std::vector<Meeting> x;
  int64_t x0, nx;          // entries [x0, x0 + nx) of a row of the large window are packed
  int64_t small, large;    // packed entries of a channel
  int64_t rows, channels;  // of a block
  int64_t width, groups;   // lanes of a group, groups of a chunk
  int64_t chunks, runs;    // chunks of lanes, and runs of chunks
  // The positions at which a row (kz, ky) of the kernel meets anything, and its first tap.
  struct KernelRow {
    int64_t tap;
    std::vector<WindowEntries> positions;
  };
  std::vector<KernelRow> kernel_rows;

  WindowSums(const Grid<const T>& s, const Grid<const T>& l, const Taps& taps)
      : p(s, l, taps), x(meetings(taps, 2, s.size[5], l.size[5])), small(p.positions) {
    // All taps of a row of the kernel go over the same positions, and read zeros beside the window.
    int64_t begin = s.size[5], end = 0;
    for (const Meeting& m : x) begin = std::min(begin, m.begin), end = std::max(end, m.end);
    x0 = x.empty() ? 0 : begin * taps.stride[2] + x.front().entry;
    nx = x.empty() ? 0 : (end - 1) * taps.stride[2] + x.back().entry + 1 - x0;
    large = l.size[3] * l.size[4] * nx;
    choose_sizes();
    if (x.empty()) return;
    for (const Meeting& z : meetings(taps, 0, s.size[3], l.size[3]))
      for (const Meeting& y : meetings(taps, 1, s.size[4], l.size[4])) {
        auto& row = kernel_rows.emplace_back();
        row.tap = (z.tap * taps.kernel[1] + y.tap) * taps.kernel[2];
        for (int64_t tz = z.begin; tz < z.end; ++tz)
          for (int64_t ty = y.begin; ty < y.end; ++ty)
            for (int64_t tx = begin; tx < end; ++tx) {
              const int64_t uz = tz * taps.stride[0] + z.entry, uy = ty * taps.stride[1] + y.entry;
              row.positions.push_back(
                  {((tz * s.size[4] + ty) * s.size[5] + tx) * width,
                   ((uz * l.size[4] + uy) * nx + (tx - begin) * taps.stride[2]) * width});
            }
      }
  }

  // D of a block, [a][b][k].
  int64_t size() const { return rows * channels * p.kernel; }

 private:
  // A tile's rows should stay in the first-level cache, a chunk's in the second.
  void choose_sizes() {
    constexpr int64_t vector = kWidth<T> * static_cast<int64_t>(sizeof(T));
    rows = std::min(tuning::kWindowBlock, p.rows);
    channels = std::min(tuning::kWindowBlock, p.channels);
    const auto bytes = [&] { return (rows * small + channels * large) * vector; };
    while (bytes() > tuning::kWindowChunkBytes && rows * channels > kTileRows) {
      int64_t& larger = rows * small > channels * large && rows > 1 ? rows
                        : channels > 1                              ? channels
                                                                    : rows;
      larger = ceil_div(larger, 2);
    }
    rows = Cut(p.rows, rows).largest();
    channels = Cut(p.channels, channels).largest();
    const int64_t blocks = p.taps.groups * ceil_div(p.rows, rows) * ceil_div(p.channels, channels);
    const int64_t wanted = ceil_div(tuning::kWindowTasks, blocks);
    const int64_t share = ceil_div(ceil_div(p.samples, kWidth<T>), wanted);
    const int64_t most = std::clamp<int64_t>(tuning::kWindowChunkBytes / bytes(), 1,
                                             std::min(tuning::kWindowVectors, share));
    const int64_t near = tuning::kWindowTileBytes / ((kTileRows * small + 2 * large) * vector);
    groups = ceil_div(most, std::clamp<int64_t>(near, 1, most));
    width = most / groups * kWidth<T>;
    chunks = ceil_div(p.samples, groups * width);
    runs = std::min(chunks, wanted);
  }
};

// Packs and multiplies the chunks of one block.
template <class T>
class WindowWorker {
 public:
  WindowWorker(const WindowSums<T>& sums, const Block& block)
      : w_(sums),
        block_(block),
        small_pitch_(block.rows() * sums.small * sums.width),
        large_pitch_(block.channels() * sums.large * sums.width),
        small_(sums.groups * small_pitch_),
        large_(sums.groups * large_pitch_),
        total_(sums.size() * kWidth<T>) {}

  void add(int64_t chunk) {
    const int64_t width = w_.width, lane = chunk * w_.groups * width;
    const int64_t lanes = std::min(w_.groups * width, w_.p.samples - lane);
    const auto& [small, large] = std::tie(w_.p.small, w_.p.large);
    for (int64_t v = 0; v < w_.p.columns; ++v) {
      if (v < small.size[0])
        pack_window(small_.data(), small, v, block_.group * w_.p.rows + block_.a0, block_.rows(), 0,
                    small.size[5], w_.small, 1, {lane, lanes, width, small_pitch_});
      if (v < large.size[0])
        pack_window(large_.data(), large, v, block_.group * w_.p.channels + block_.b0,
                    block_.channels(), w_.x0, w_.nx, w_.large, 1,
                    {lane, lanes, width, large_pitch_});
      for (int64_t g = 0; g * width < lanes; ++g)
        multiply(small_.data() + g * small_pitch_, large_.data() + g * large_pitch_,
                 ceil_div(std::min(width, lanes - g * width), kWidth<T>));
    }
  }

  void finish(T* to) {
    for (int64_t i = 0; i < w_.size(); ++i) to[i] = sum<T>(load(total_.data() + i * kWidth<T>));
  }

 private:
  void multiply(const T* small, const T* large, int64_t vectors) {
    const int64_t taps = w_.x.size(), row = w_.small * w_.width;
    const int64_t pitch = w_.channels * w_.p.kernel * kWidth<T>;
    const Cut rows(block_.rows(), kTileRows);
    for (int64_t i = 0; i < rows.blocks; ++i) {
      const int64_t r = rows.begin(i), count = rows.size(i);
      const Cut columns(block_.channels() * taps, tile_columns(count));
      for (int64_t j = 0; j < columns.blocks; ++j) {
        const int64_t c0 = columns.begin(j), wide = columns.size(j);
        const auto tile =
            tile_for(count, wide, []<int R, int C>() { return &square_tile<T, R, C>; });
        const T* at[tile_columns(1)];
        int64_t to[tile_columns(1)];
        for (int64_t c = 0; c < wide; ++c) {
          const int64_t b = (c0 + c) / taps;
          const Meeting& x = w_.x[(c0 + c) % taps];
          at[c] = large + (b * w_.large + x.entry - w_.x[0].entry) * w_.width;
          to[c] = (b * w_.p.kernel + x.tap) * kWidth<T>;
        }
        for (const auto& [tap, positions] : w_.kernel_rows)
          tile(positions, small + r * row, row, at, vectors,
               total_.data() + r * pitch + tap * kWidth<T>, pitch, to);
      }
    }
  }

  const WindowSums<T>& w_;
  Block block_;
  int64_t small_pitch_, large_pitch_;
  Scratch<T> small_, large_, total_;
};

template <class T>
void window_squared_sum(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                        Grid<const T> large, Taps taps) {
  const WindowSums<T> sums(small, large, taps);
  const Correlation<T>& p = sums.p;
  const auto blocks = cut(taps.groups, p.rows, p.channels, sums.rows, sums.channels);
  const int64_t runs = sums.runs, size = sums.size();
  Scratch<T> partial(static_cast<int64_t>(blocks.size()) * runs * size);
  context.parallel_for(blocks.size() * runs, [&](int64_t task) {
    WindowWorker<T> worker(sums, blocks[task / runs]);
    const auto [begin, end] = run_range(sums.chunks, runs, task % runs);
    for (int64_t chunk = begin; chunk < end; ++chunk) worker.add(chunk);
    worker.finish(partial.data() + task * size);
  });
  for (size_t i = 0; i < blocks.size(); ++i) {
    T* total = partial.data() + i * runs * size;
    for (int64_t run = 1; run < runs; ++run)
      for (int64_t j = 0; j < size; ++j) total[j] += total[run * size + j];
    update_weight(out, update, p, blocks[i], total, {sums.channels * p.kernel, p.kernel, 1});
  }
}
