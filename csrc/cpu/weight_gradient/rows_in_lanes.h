// Weight gradients with rows in the lanes of vectors.
//
// Rows are turned into panels [position][lanes], and values of windows are broadcast from arrays in
// which a tap is an offset (pack/padded.h), so that nothing is unfolded. Taps that follow each
// other share an address: they are a run.

constexpr int64_t kLanePositions = 256;  // of a slab, about: a panel stays in the first-level cache
constexpr int64_t kTurnedBytes = 512 << 10;  // of a slab's panels, at most

// Columns of one channel whose offsets follow each other: entry offset + i goes to columns[i].
struct Run {
  int64_t offset;
  std::array<int64_t, 5> columns;
};

// Positions that follow each other, from `first` on, and from entry `at` of the arrays on.
struct Line {
  int64_t first, at, count;
};

// Runs of a tile: what fits the registers, and few enough addresses.
template <int R, int K>
constexpr int kRunsOfTile = std::clamp((kManyRegisters ? 24 : 12) / (R * K), 1, 8);

// totals[column * pitch + lane] (+)= sum over lines of x[line + run + i] * s[position][lane],
// for P runs of K columns.
template <class T, int R, int P, int K>
[[gnu::noinline]] void lanes_tile(const T* __restrict s, std::span<const Line> lines,
                                  const T* __restrict x, const Run* runs, T* __restrict totals,
                                  int64_t pitch, bool accumulate) {
  constexpr int64_t kLanes = R * kWidth<T>;
  Reg<T> acc[P][K][R] = {};
  auto line = lines.begin();
  do {
    const T *at[P], *position = s + line->first * kLanes;
    for (int p = 0; p < P; ++p) at[p] = x + (line->at + runs[p].offset);
    int64_t t = 0;
    do {
      asm("" : "+r"(t));  // or GCC carries values from one position to the next, and spills
      Reg<T> rows[R];
      for (int r = 0; r < R; ++r) rows[r] = load(position + r * kWidth<T>);
      for (int p = 0; p < P; ++p)
        for (int k = 0; k < K; ++k) {
          const Reg<T> value = broadcast(at[p][t + k]);
          for (int r = 0; r < R; ++r) acc[p][k][r] += value * rows[r];
        }
      position += kLanes;
    } while (++t < line->count);
  } while (++line != lines.end());
  for (int p = 0; p < P; ++p)
    for (int k = 0; k < K; ++k)
      for (int r = 0; r < R; ++r) {
        T* total = totals + runs[p].columns[k] * pitch + r * kWidth<T>;
        store(total, accumulate ? load(total) + acc[p][k][r] : acc[p][k][r]);
      }
}

// lanes_tile for any number of runs, by P at a time first.
template <class T, int R, int P, int K>
void lanes_tiles(const T* s, std::span<const Line> lines, const T* x, std::span<const Run> runs,
                 T* totals, int64_t pitch, bool accumulate) {
  for (; runs.size() >= P; runs = runs.subspan(P))
    lanes_tile<T, R, P, K>(s, lines, x, runs.data(), totals, pitch, accumulate);
  if constexpr (P > 1)
    if (!runs.empty()) lanes_tiles<T, R, P / 2, K>(s, lines, x, runs, totals, pitch, accumulate);
}

// Taps by runs of five columns, three and one.
constexpr std::array kRunLengths{5, 3, 1};
using Runs = std::array<std::vector<Run>, kRunLengths.size()>;

// The runs of some taps, in the order of the channels, whose arrays are `pitch` apart.
inline Runs runs_of(std::span<const std::pair<int64_t, int64_t>> some, int64_t kernel,
                    int64_t channels, int64_t pitch) {
  std::vector taps(some.begin(), some.end());
  std::sort(taps.begin(), taps.end());
  Runs found;
  for (int64_t b = 0; b < channels; ++b)
    for (size_t i = 0, piece; i < taps.size(); i += piece) {
      size_t stretch = 1;
      while (i + stretch < taps.size() &&
             taps[i + stretch].first == taps[i].first + int64_t(stretch))
        ++stretch;
      piece = stretch == 5 || stretch > 6 ? 5 : stretch > 2 ? 3 : 1;
      Run run{b * pitch + taps[i].first, {}};
      for (size_t k = 0; k < piece; ++k) run.columns[k] = b * kernel + taps[i + k].second;
      found[std::find(kRunLengths.begin(), kRunLengths.end(), piece) - kRunLengths.begin()]
          .push_back(run);
    }
  return found;
}

// Runs that leave out the same lines of positions: those of one row of taps, or all, if next to no
// line would be left out.
struct RunGroup {
  Runs runs;
  int64_t z = -1, y = -1;  // the taps of the axes, if it is one row
};

inline std::vector<RunGroup> group_runs(const Planes& p, const int64_t kernel[3],
                                        int64_t channels) {
  const auto taps = p.tap_offsets(kernel);
  const int64_t tz = p.axes[0].taps.size(), ty = p.axes[1].taps.size();
  const int64_t pitch = p.phases * p.plane, nx = p.axes[2].taps.size(), count = taps.size();
  if (p.within(0) * p.within(1) > 0.95) return {{runs_of(taps, count, channels, pitch)}};
  std::vector<RunGroup> found;
  for (int64_t row = 0; row < tz * ty; ++row)
    found.push_back({runs_of(std::span(taps).subspan(row * nx, nx), count, channels, pitch),
                     row / ty, row % ty});
  return found;
}

// Instructions for products with so many vectors of rows: fewer than four wait for the broadcasts.
inline double lanes_cost(int64_t vectors) {
  const int64_t most = kManyRegisters ? 4 : 2, fours = vectors / most * most,
                left = vectors - fours;
  return fours + (left >= 2 ? 2.4 : 0) + (left % 2 ? (kManyRegisters ? 1.7 : 1.25) : 0);
}

// The rows of a slab, of one sample or a few, in panels, and their products with the arrays of some
// channels.
template <class T>
class Lanes {
 public:
  Lanes(const Planes& planes, const int64_t kernel[3], int64_t rows, int64_t channels,
        int64_t samples)
      : planes_(planes),
        channels_(channels),
        pitch_(round_up(rows, kWidth<T>)),
        turned_(pitch_ * samples * planes.positions(0), pitch_ * samples * planes.positions(0)),
        groups_(group_runs(planes, kernel, channels)) {}

  // Rows [a, a + rows) of sample n of `s`, with a function applied, as number `index` of `samples`.
  template <class F>
  void take(const Grid<const T>& s, int64_t v, int64_t n, int64_t a, int64_t rows, int64_t slab,
            int64_t index, int64_t samples, F f) {
    int64_t nx = planes_.count(2, slab), ny = planes_.count(1, slab);
    if (s.stride[4] == nx * s.stride[5]) nx *= std::exchange(ny, 1);  // lines that are one
    const int64_t positions = planes_.positions(slab);
    const T* corner = s.channel(v, n, 0);
    for (int d = 0; d < 3; ++d) corner += planes_.begin(d, slab) * s.stride[3 + d];
    each_panel(rows, samples * positions, [&](int64_t first, int64_t vectors, T* panel) {
      const int64_t width = vectors * kWidth<T>, count = std::min(width, rows - first);
      panel += index * positions * width;
      for (int64_t z = 0; z < planes_.count(0, slab); ++z)
        interleave(panel + z * ny * nx * width, width,
                   corner + (a + first) * s.stride[2] + z * s.stride[3], s.stride[5], s.stride[2],
                   count, nx, {ny, nx * width, s.stride[4]}, f);
      for (T* at = panel; at < panel + positions * width; at += width)
        for (int64_t i = count; i < width; ++i) at[i] = 0;
    });
  }

  // sums[column * pitch + row] (+)= rows times windows of `channels` channels of the arrays, which
  // are `step` apart for each of the samples.
  void multiply(const T* arrays, int64_t step, int64_t samples, int64_t rows, int64_t channels,
                int64_t slab, T* sums, bool accumulate) {
    for (const RunGroup& group : groups_) {
      find_lines(group, step, samples, slab);
      each_panel(rows, samples * planes_.positions(slab),
                 [&](int64_t first, int64_t vectors, T* panel) {
                   auto tiles = [&]<int R, size_t... i>(std::index_sequence<i...>) {
                     (lanes_tiles<T, R, kRunsOfTile<R, kRunLengths[i]>, kRunLengths[i]>(
                          panel, lines_, arrays, of_channels(group.runs[i], channels), sums + first,
                          pitch_, accumulate),
                      ...);
                   };
                   constexpr auto all = std::make_index_sequence<kRunLengths.size()>{};
                   if (vectors == 1) tiles.template operator()<1>(all);
                   if (vectors == 2) tiles.template operator()<2>(all);
                   if constexpr (kManyRegisters)
                     if (vectors == 4) tiles.template operator()<4>(all);
                 });
    }
  }

 private:
  // The lines that a group reads: at least one, even if it has zeros alone.
  void find_lines(const RunGroup& group, int64_t step, int64_t samples, int64_t slab) {
    const int64_t nz = planes_.count(0, slab), ny = planes_.count(1, slab);
    const int64_t nx = planes_.count(2, slab);
    std::pair all_z{int64_t(0), nz}, all_y{int64_t(0), ny};
    if (group.z >= 0) {
      all_z = planes_.inside(0, group.z, slab);
      all_y = planes_.inside(1, group.y, slab);
    }
    lines_.clear();
    for (int64_t n = 0; n < samples; ++n)
      for (int64_t z = all_z.first; z < all_z.second; ++z)
        for (int64_t y = all_y.first; y < all_y.second; ++y)
          lines_.push_back({((n * nz + z) * ny + y) * nx, n * step + planes_.row(z, y), nx});
    if (lines_.empty()) lines_.push_back({0, 0, nx});
  }

  // f(first row, vectors, panel): rows by four vectors, two or one.
  template <class F>
  void each_panel(int64_t rows, int64_t positions, F f) {
    T* panel = turned_.data();
    for (int64_t first = 0, vectors; first < rows; first += vectors * kWidth<T>) {
      const int64_t left = ceil_div(rows - first, kWidth<T>);
      vectors = kManyRegisters && left >= 4 ? 4 : left >= 2 ? 2 : 1;
      f(first, vectors, panel);
      panel += vectors * kWidth<T> * positions;
    }
  }

  std::span<const Run> of_channels(std::span<const Run> runs, int64_t channels) const {
    return runs.first(runs.size() / channels_ * channels);
  }

  const Planes& planes_;
  int64_t channels_, pitch_;
  Scratch<T> turned_;
  std::vector<RunGroup> groups_;
  std::vector<Line> lines_;
};
