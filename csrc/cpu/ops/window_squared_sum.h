// D[a, b, k] = sum_{v, l} (sum_t small[v, a, t, l] large[v, b, t * stride - padding + k * dilation,
// l])^2 over windows of many lanes.
//
// A tile is some rows a times some columns (b, kx) of one row (kz, ky) of the kernel, for one
// vector of lanes: its sums over t live in registers, are squared and added to D's vector of lanes.
// With one position the square comes first, so that sums over columns and lanes are all that is
// left. Parallel over blocks of the weight and fixed runs of lanes, whose sums are
// added in order: the bits do not depend on the number of threads.

// Positions at which a tile sums, nz x ny x nx of them, and how far apart they are in memory.
struct SquareBox {
  int64_t nz, ny, nx;
  int64_t small_z, small_y, small_x;
  int64_t large_z, large_y, large_x;
};

// total[r * pitch + c] += square(sums[r][c]), or the sums themselves, for `vectors` of lanes.
template <class T, int R, int C, bool Squared>
void square_tile(const SquareBox& box, const T* small, int64_t row, const T* const* columns,
                 int64_t vectors, T* total, int64_t pitch) {
  // Several vectors at once where one would leave the multipliers waiting for their own results.
  constexpr int Many = !Squared ? 1 : R * C <= 2 ? 4 : R * C <= 4 ? 2 : 1;
  const auto run = [&]<int M>(int64_t lane) __attribute__((always_inline)) {
    Reg<T> acc[R][C][M];
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c)
        for (int m = 0; m < M; ++m) acc[r][c][m] = Reg<T>{};
    const T* base[C];
    for (int c = 0; c < C; ++c) base[c] = columns[c] + lane;
    // There is one position at least; loops that know it keep the sums out of memory.
    int64_t z = 0;
    do {
      int64_t y = 0;
      do {
        const T* a = small + lane + z * box.small_z + y * box.small_y;
        int64_t u = z * box.large_z + y * box.large_y;
        int64_t x = box.nx;
        do {
          for (int m = 0; m < M; ++m) {
            Reg<T> rows[R];
            for (int r = 0; r < R; ++r) rows[r] = load(a + r * row + m * kWidth<T>);
            for (int c = 0; c < C; ++c) {
              const Reg<T> column = load(base[c] + u + m * kWidth<T>);
              for (int r = 0; r < R; ++r) acc[r][c][m] += rows[r] * column;
            }
          }
          a += box.small_x;
          u += box.large_x;
        } while (--x);
      } while (++y < box.ny);
    } while (++z < box.nz);
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) {
        T* at = total + r * pitch + c * kWidth<T>;
        Reg<T> sum = load(at);
        for (int m = 0; m < M; ++m)
          if constexpr (Squared)
            sum += acc[r][c][m] * acc[r][c][m];
          else
            sum += acc[r][c][m];
        store(at, sum);
      }
  };
  int64_t q = 0;
  if constexpr (Many > 1)
    for (; q + Many <= vectors; q += Many) run.template operator()<Many>(q * kWidth<T>);
  for (; q < vectors; ++q) run.template operator()<1>(q * kWidth<T>);
}

template <class T>
using SquareTile = void (*)(const SquareBox&, const T*, int64_t, const T* const*, int64_t, T*,
                            int64_t);

constexpr int kSquareRows = 4, kSquareColumns = 8;
constexpr int square_columns(int64_t rows) {
  constexpr int many[] = {8, 8, 8, 6}, few[] = {8, 6, 4, 3};
  return kManyRegisters ? many[rows - 1] : few[rows - 1];
}

template <class T, bool Squared>
SquareTile<T> square_tile_for(int64_t rows, int64_t columns) {
  SquareTile<T> found = nullptr;
  const auto try_columns = [&]<int R, int... C>(std::integer_sequence<int, C...>) {
    ((columns == C + 1 ? void(found = &square_tile<T, R, C + 1, Squared>) : void()), ...);
  };
  const auto try_rows = [&]<int... R>(std::integer_sequence<int, R...>) {
    ((rows == R + 1 ? try_columns.template operator()<R + 1>(
                          std::make_integer_sequence<int, square_columns(R + 1)>())
                    : void()),
     ...);
  };
  try_rows(std::make_integer_sequence<int, kSquareRows>());
  return found;
}

// The positions [begin, end) of one axis at which a tap meets the large window.
struct Meeting {
  int64_t tap, begin, end;
};

inline std::vector<Meeting> meetings(const Taps& taps, int d, int64_t positions, int64_t source) {
  std::vector<Meeting> found;
  for (int64_t k = 0; k < taps.kernel[d]; ++k) {
    const int64_t shift = k * taps.dilation[d] - taps.padding[d];
    const int64_t begin = std::max<int64_t>(0, ceil_div(-shift, taps.stride[d]));
    const int64_t end = std::min(positions, ceil_div(source - shift, taps.stride[d]));
    if (begin < end) found.push_back({k, begin, end});
  }
  return found;
}

// The innermost axis of the taps that meet anything.
inline Axis meeting_axis(const Taps& taps, const std::vector<Meeting>& met, int64_t positions,
                         int64_t source) {
  std::vector<int64_t> shifts, indices;
  for (const Meeting& m : met) {
    shifts.push_back(m.tap * taps.dilation[2] - taps.padding[2]);
    indices.push_back(m.tap);
  }
  return Axis(positions, source, taps.stride[2], shifts, indices);
}

template <class T>
struct WindowSums {
  Correlation<T> p;
  std::vector<Meeting> met[3];
  Axis x;                  // large windows are packed along it, phase by phase
  int64_t line;            // packed entries of a row of a large window
  bool pads;               // the packed windows hold entries beside the tensor's
  bool squared;            // square after the sum over positions; else there is one position
  int64_t rows, channels;  // of a block
  int64_t width;           // lanes of a group
  int64_t groups;          // groups of a chunk
  int64_t chunks, runs;    // chunks of lanes, and runs of chunks
  int64_t size;            // vectors of D of a block

  WindowSums(const Grid<const T>& small, const Grid<const T>& large, const Taps& taps)
      : p(small, large, taps),
        met{meetings(taps, 0, small.size[3], large.size[3]),
            meetings(taps, 1, small.size[4], large.size[4]),
            meetings(taps, 2, small.size[5], large.size[5])},
        x(meeting_axis(taps, met[2], small.size[5], large.size[5])),
        line(x.length * static_cast<int64_t>(x.phases.size())),
        pads(false),
        squared(p.positions > 1) {
    for (int64_t phase : x.phases)
      pads = pads || x.first * x.stride + phase < 0 ||
             (x.first + x.length - 1) * x.stride + phase >= large.size[5];
    // A tile's rows should stay in the first-level cache, a chunk's in the second.
    constexpr int64_t kTileBytes = 20 << 10, kChunkBytes = 320 << 10, kMostVectors = 16;
    constexpr int64_t kBlock = 16, kTasks = 16;
    constexpr int64_t vector = kWidth<T> * static_cast<int64_t>(sizeof(T));
    const int64_t t = p.positions, u = large.size[3] * large.size[4] * line;
    rows = std::min(kBlock, p.rows);
    channels = std::min(kBlock, p.channels);
    while ((rows * t + channels * u) * vector > kChunkBytes && rows * channels > kSquareRows) {
      int64_t& larger = rows * t > channels * u && rows > 1 ? rows : channels > 1 ? channels : rows;
      larger = ceil_div(larger, 2);
    }
    rows = ceil_div(p.rows, ceil_div(p.rows, rows));
    channels = ceil_div(p.channels, ceil_div(p.channels, channels));
    const int64_t blocks = taps.groups * ceil_div(p.rows, rows) * ceil_div(p.channels, channels);
    const int64_t wanted = ceil_div(kTasks, blocks);
    const int64_t afford = kChunkBytes / ((rows * t + channels * u) * vector);
    const int64_t share = ceil_div(ceil_div(p.samples, kWidth<T>), wanted);
    const int64_t most = std::clamp<int64_t>(afford, 1, std::min(kMostVectors, share));
    const int64_t near = kTileBytes / ((kSquareRows * t + 2 * u) * vector);
    groups = squared ? ceil_div(most, std::clamp<int64_t>(near, 1, most)) : 1;
    width = most / groups * kWidth<T>;
    chunks = ceil_div(p.samples, groups * width);
    runs = std::min(chunks, wanted);
    size = rows * rows_of_kernel() * channels * columns_of_kernel();
  }

  int64_t rows_of_kernel() const { return met[0].size() * met[1].size(); }
  int64_t columns_of_kernel() const { return met[2].size(); }
};

// Packs and multiplies the chunks of one block.
template <class T>
class WindowWorker {
 public:
  WindowWorker(const WindowSums<T>& sums, const Block& block)
      : w_(sums),
        block_(block),
        small_pitch_(block.rows() * sums.p.positions * sums.width),
        large_pitch_(block.channels() * window() * sums.width),
        small_(sums.groups * small_pitch_),
        large_(sums.groups * large_pitch_),
        total_(sums.size * kWidth<T>) {
    // Entries beside the window are never written.
    if (sums.pads) std::fill_n(large_.data(), sums.groups * large_pitch_, T(0));
  }

  void add(int64_t chunk) {
    const int64_t lane = chunk * w_.groups * w_.width;
    const int64_t lanes = std::min(w_.groups * w_.width, w_.p.samples - lane);
    const int64_t small_columns = w_.p.small.size[0], large_columns = w_.p.large.size[0];
    if (w_.squared) {
      for (int64_t v = 0; v < w_.p.columns; ++v) {
        if (v < small_columns) pack_small<false>(v, lane, lanes, Identity{});
        if (v < large_columns) pack_large<false>(v, lane, lanes, Identity{});
        multiply_groups<true>(lanes);
      }
    } else if (small_columns > 1 && large_columns > 1) {
      for (int64_t v = 0; v < w_.p.columns; ++v) {
        pack_small<false>(v, lane, lanes, Square{});
        pack_large<false>(v, lane, lanes, Square{});
        multiply_groups<false>(lanes);
      }
    } else {
      // The squares of all columns can be added before anything else.
      pack_small<false>(0, lane, lanes, Square{});
      pack_large<false>(0, lane, lanes, Square{});
      for (int64_t v = 1; v < small_columns; ++v) pack_small<true>(v, lane, lanes, Square{});
      for (int64_t v = 1; v < large_columns; ++v) pack_large<true>(v, lane, lanes, Square{});
      multiply_groups<false>(lanes);
    }
  }

  // D of the block, in the order [a][kz][ky][b][kx] of the taps that meet anything.
  void finish(T* to) {
    for (int64_t i = 0; i < w_.size; ++i) to[i] = sum<T>(load(total_.data() + i * kWidth<T>));
  }

 private:
  // Entries of a packed large window of one channel.
  int64_t window() const { return w_.p.large.size[3] * w_.p.large.size[4] * w_.line; }

  template <bool Add, class Transform>
  void pack_small(int64_t v, int64_t lane, int64_t lanes, Transform transform) {
    const auto& s = w_.p.small;
    T* to = small_.data();
    for (int64_t a = block_.a0; a < block_.a1; ++a)
      for (int64_t z = 0; z < s.size[3]; ++z)
        for (int64_t y = 0; y < s.size[4]; ++y)
          for (int64_t x = 0; x < s.size[5]; ++x, to += w_.width)
            pack_lanes<Add>(to, small_pitch_, w_.width,
                            s.data + v * s.stride[0] + lane * s.stride[1] +
                                (block_.group * w_.p.rows + a) * s.stride[2] + z * s.stride[3] +
                                y * s.stride[4] + x * s.stride[5],
                            s.stride[1], lanes, transform);
  }

  template <bool Add, class Transform>
  void pack_large(int64_t v, int64_t lane, int64_t lanes, Transform transform) {
    const auto& l = w_.p.large;
    T* to = large_.data();
    for (int64_t b = block_.b0; b < block_.b1; ++b)
      for (int64_t z = 0; z < l.size[3]; ++z)
        for (int64_t y = 0; y < l.size[4]; ++y)
          for (int64_t phase : w_.x.phases)
            for (int64_t q = 0; q < w_.x.length; ++q, to += w_.width) {
              const int64_t x = (q + w_.x.first) * w_.x.stride + phase;
              if (x < 0 || x >= l.size[5]) continue;
              pack_lanes<Add>(to, large_pitch_, w_.width,
                              l.data + v * l.stride[0] + lane * l.stride[1] +
                                  (block_.group * w_.p.channels + b) * l.stride[2] +
                                  z * l.stride[3] + y * l.stride[4] + x * l.stride[5],
                              l.stride[1], lanes, transform);
            }
  }

  template <bool Squared>
  void multiply_groups(int64_t lanes) {
    for (int64_t g = 0; g * w_.width < lanes; ++g)
      multiply<Squared>(g, ceil_div(std::min(w_.width, lanes - g * w_.width), kWidth<T>));
  }

  template <bool Squared>
  void multiply(int64_t group, int64_t vectors) {
    const auto& s = w_.p.small;
    const auto& taps = w_.p.taps;
    const int64_t width = w_.width, taps_x = w_.columns_of_kernel();
    const int64_t row = w_.p.positions * width, columns = block_.channels() * taps_x;
    const int64_t total_row = w_.rows_of_kernel() * w_.channels * taps_x * kWidth<T>;
    const T* small = small_.data() + group * small_pitch_;
    const T* large = large_.data() + group * large_pitch_;
    const Cut row_blocks(block_.rows(), kSquareRows);
    for (int64_t i = 0; i < row_blocks.blocks; ++i) {
      const int64_t r = row_blocks.begin(i), count = row_blocks.size(i);
      const Cut column_blocks(columns, square_columns(count));
      for (int64_t j = 0; j < column_blocks.blocks; ++j) {
        const int64_t c0 = column_blocks.begin(j), wide = column_blocks.size(j);
        const SquareTile<T> tile = square_tile_for<T, Squared>(count, wide);
        // The columns' common range of positions, beyond which all of them read zeros.
        int64_t begin = s.size[5], end = 0;
        const T* at[kSquareColumns];
        for (int64_t c = 0; c < wide; ++c) {
          const int64_t b = (c0 + c) / taps_x, kx = (c0 + c) % taps_x;
          begin = std::min(begin, w_.met[2][kx].begin);
          end = std::max(end, w_.met[2][kx].end);
          const Tap& tap = w_.x.taps[kx];
          at[c] = large + (b * window() + tap.phase * w_.x.length + tap.offset) * width;
        }
        T* total = total_.data() + r * total_row + c0 * kWidth<T>;
        for (const Meeting& z : w_.met[0])
          for (const Meeting& y : w_.met[1]) {
            const auto source = [&](int d, const Meeting& m) {
              return m.begin * taps.stride[d] + m.tap * taps.dilation[d] - taps.padding[d];
            };
            const int64_t from =
                ((source(0, z) * w_.p.large.size[4] + source(1, y)) * w_.line + begin) * width;
            const T* starts[kSquareColumns];
            for (int64_t c = 0; c < wide; ++c) starts[c] = at[c] + from;
            SquareBox box{z.end - z.begin,
                          y.end - y.begin,
                          end - begin,
                          s.size[4] * s.size[5] * width,
                          s.size[5] * width,
                          width,
                          taps.stride[0] * w_.p.large.size[4] * w_.line * width,
                          taps.stride[1] * w_.line * width,
                          width};
            int64_t lanes = vectors;
            if constexpr (!Squared) {
              // One position: the sum runs over the lanes instead.
              box.nx = vectors;
              box.small_x = box.large_x = kWidth<T>;
              lanes = 1;
            }
            const T* a =
                small + r * row + ((z.begin * s.size[4] + y.begin) * s.size[5] + begin) * width;
            tile(box, a, row, starts, lanes, total, total_row);
            total += w_.channels * taps_x * kWidth<T>;
          }
      }
    }
  }

  const WindowSums<T>& w_;
  Block block_;
  int64_t small_pitch_, large_pitch_;
  Pack<T> small_, large_;
  Scratch<T> total_;
};

template <class T>
void window_squared_sum(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                        Grid<const T> large, Taps taps) {
  const Correlation<T> p(small, large, taps);
  Scratch<T> value(taps.groups * p.rows * p.channels * p.kernel);
  const bool meets = !meetings(taps, 0, small.size[3], large.size[3]).empty() &&
                     !meetings(taps, 1, small.size[4], large.size[4]).empty() &&
                     !meetings(taps, 2, small.size[5], large.size[5]).empty();
  if (meets) {
    const WindowSums<T> sums(small, large, taps);
    const auto blocks = cut(taps.groups, p.rows, p.channels, sums.rows, sums.channels);
    const int64_t runs = sums.runs;
    Scratch<T> partial(static_cast<int64_t>(blocks.size()) * runs * sums.size);
    context.parallel_for(blocks.size() * runs, [&](int64_t task) {
      WindowWorker<T> worker(sums, blocks[task / runs]);
      const auto [begin, end] = run_range(sums.chunks, runs, task % runs);
      for (int64_t chunk = begin; chunk < end; ++chunk) worker.add(chunk);
      worker.finish(partial.data() + task * sums.size);
    });
    for (size_t i = 0; i < blocks.size(); ++i) {
      T* total = partial.data() + i * runs * sums.size;
      for (int64_t run = 1; run < runs; ++run)
        for (int64_t j = 0; j < sums.size; ++j) total[j] += total[run * sums.size + j];
      for (int64_t a = blocks[i].a0; a < blocks[i].a1; ++a)
        for (const Meeting& z : sums.met[0])
          for (const Meeting& y : sums.met[1])
            for (int64_t b = 0; b < sums.channels; ++b)
              for (const Meeting& x : sums.met[2]) {
                const T entry = *total++;
                if (b >= blocks[i].channels()) continue;
                const int64_t channel =
                    (blocks[i].group * p.rows + a) * p.channels + blocks[i].b0 + b;
                const int64_t row = (channel * taps.kernel[0] + z.tap) * taps.kernel[1] + y.tap;
                value.data()[row * taps.kernel[2] + x.tap] = entry;
              }
    }
  }
  const T* from = value.data();
  const T decay = update.decay, scale = update.scale;
  for (int64_t a = 0; a < taps.groups * p.rows; ++a)
    for (int64_t b = 0; b < p.channels; ++b)
      for (int64_t z = 0; z < taps.kernel[0]; ++z)
        for (int64_t y = 0; y < taps.kernel[1]; ++y)
          for (int64_t x = 0; x < taps.kernel[2]; ++x, ++from) {
            T* to = out.data + a * out.stride[1] + b * out.stride[2] + z * out.stride[3] +
                    y * out.stride[4] + x * out.stride[5];
            *to = (decay == 0 ? T(0) : decay * *to) + scale * *from;
          }
}
