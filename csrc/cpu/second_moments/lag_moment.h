// Second moments of the patches of a convolution with stride 1, by products that taps share.
//
//   A[(c, i), (c', j)] = sum_t x_c(t + i) x_c'(t + j) = sum_{q in t + i} x_c(q) x_c'(q + l), l = j
//   - i
//
// The pairs of taps with one lag l sum the same products, over windows of positions q that differ
// at their ends only. The ends of all windows cut an axis into segments; the products over a region
// (one segment an axis) are summed once and added to every pair whose window holds the region. So
// there are 2K - 1 lags an axis instead of K^2 pairs, and nothing is ever subtracted.
//
// The padded input stands in panels [panel][sample, position][kPanel], some samples or a row block
// of one at a time. A task is a pair of panels with a lag; l and -l are each other's mirror, so
// lags that come first in order suffice. Every entry is summed by one thread in one order.

struct Segment {
  int64_t begin, end;       // positions
  int64_t first_tap, taps;  // whose windows hold it
};

// One axis for one lag: the taps i of pairs (i, i + lag), window i being [i * dilation, ... + T).
struct LagAxis {
  int64_t first_tap, taps;
  std::vector<Segment> segments;

  LagAxis(int64_t lag, int64_t kernel, int64_t dilation, int64_t positions)
      : first_tap(std::max<int64_t>(0, -lag)), taps(kernel - std::abs(lag)) {
    std::vector<int64_t> cuts;
    for (int64_t i = first_tap; i < first_tap + taps; ++i) {
      cuts.push_back(i * dilation);
      cuts.push_back(i * dilation + positions);
    }
    std::sort(cuts.begin(), cuts.end());
    for (size_t s = 0; s + 1 < cuts.size(); ++s) {
      if (cuts[s] == cuts[s + 1]) continue;
      Segment segment{cuts[s], cuts[s + 1], 0, 0};
      for (int64_t i = first_tap + taps - 1; i >= first_tap; --i)
        if (i * dilation <= cuts[s] && cuts[s] < i * dilation + positions) {
          segment.first_tap = i;
          ++segment.taps;
        }
      if (segment.taps > 0) segments.push_back(segment);
    }
  }
};

struct Lag {
  std::array<int64_t, 3> at;
  std::array<LagAxis, 3> axes;
  int64_t pairs() const { return axes[0].taps * axes[1].taps * axes[2].taps; }
  // The number among this lag's pairs of the one whose first tap is (z, y, x).
  int64_t pair(int64_t z, int64_t y, int64_t x) const {
    return ((z - axes[0].first_tap) * axes[1].taps + y - axes[1].first_tap) * axes[2].taps + x -
           axes[2].first_tap;
  }
};

template <class T>
class LagMoment {
 public:
  // Whether the taps of a convolution on so many channels are better shared than multiplied out.
  static bool applies(const Taps& taps, int64_t channels) {
    return taps.kernel[0] * taps.kernel[1] * taps.kernel[2] > 1 && taps.stride[0] == 1 &&
           taps.stride[1] == 1 && taps.stride[2] == 1 && channels >= tuning::kLagChannels;
  }

  // Moments of channels [first, first + channels) of x [1, N, C, z, y, x].
  LagMoment(const Context& context, const Grid<const T>& x, int64_t first, int64_t channels,
            const int64_t output_size[3], const Taps& taps)
      : context_(context), x_(x), first_(first), channels_(channels), taps_(taps) {
    for (int d = 2; d >= 0; --d) {
      positions_[d] = output_size[d];
      lengths_[d] = total_[d] = positions_[d] + (taps.kernel[d] - 1) * taps.dilation[d];
      if (positions_[d] > 1) outer_ = d;
    }
    panels_ = ceil_div(channels, kPanel<T>);
    choose_chunks();
    make_lags();
    arrays_.emplace(panels_ * capacity() * kPanel<T>);
    blocks_.emplace(task_offsets_.back());
    for (int64_t begin = 0; begin < x.size[1] * row_blocks_; begin += items_) {
      const int64_t items = std::min(items_, x.size[1] * row_blocks_ - begin);
      pack(begin, items);
      context.parallel_for(tasks(), [&](int64_t task) { add_task(task, begin, items); });
    }
  }

  // out <- decay * out + scale * A, strided.
  void write(T* out, int64_t out_row, int64_t out_column, Update update) {
    const int64_t kernel = taps_.kernel[0] * taps_.kernel[1] * taps_.kernel[2];
    context_.parallel_for(panels_ * panels_ * kernel, [&](int64_t task) {
      const int64_t i = task % kernel, p = task / kernel % panels_, q = task / kernel / panels_;
      Scratch<T> values(kernel * kArea), line(kPanel<T> * kernel);
      std::vector<int64_t> offsets(kernel);
      for (int64_t j = 0; j < kernel; ++j) copy_pair(values.data() + j * kArea, p, i, q, j);
      for (int64_t r = 0; r < width(p); ++r) {
        for (int64_t j = 0; j < kernel; ++j) offsets[j] = j * kArea + r * kPanel<T>;
        gather_lines(line.data(), kernel, values.data(), offsets.data(), kernel, width(q));
        T* to = out + ((p * kPanel<T> + r) * kernel + i) * out_row +
                q * kPanel<T> * kernel * out_column;
        write_row<T>(to, out_column, update, line.data(), {}, nullptr, 0, width(q) * kernel);
      }
    });
  }

 private:
  static constexpr int64_t kArea = kPanel<T> * kPanel<T>;

  int64_t width(int64_t panel) const {
    return std::min<int64_t>(kPanel<T>, channels_ - panel * kPanel<T>);
  }
  int64_t plane() const { return lengths_[0] * lengths_[1] * lengths_[2]; }
  int64_t capacity() const { return items_ * plane(); }
  int64_t flat(int64_t z, int64_t y, int64_t x) const {
    return (z * lengths_[1] + y) * lengths_[2] + x;
  }

  // An item is a row block of one sample, cut across the outermost axis; a chunk is some items.
  void choose_chunks() {
    const int64_t vector = panels_ * kPanel<T> * sizeof(T);
    const int64_t afford = tuning::kLagBytes / (plane() / total_[outer_] * vector);
    const int64_t halo = total_[outer_] - positions_[outer_];
    row_block_ = total_[outer_];
    if (afford < row_block_) {
      row_block_ =
          std::clamp<int64_t>(afford - halo, std::min(row_block_, 2 * halo + 1), row_block_);
      lengths_[outer_] = row_block_ + halo;
    }
    row_blocks_ = ceil_div(total_[outer_], row_block_);
    const int64_t most = std::max<int64_t>(1, tuning::kLagBytes / (plane() * vector));
    const int64_t chunks = ceil_div(x_.size[1] * row_blocks_, most);
    items_ = ceil_div(x_.size[1] * row_blocks_, chunks);
  }

  // Lags in lexical order from zero on, and where the pairs of each task begin.
  void make_lags() {
    int64_t lag[3];
    auto reach = [&](int d) { return taps_.kernel[d] - 1; };
    auto axis = [&](int d) {
      return LagAxis(lag[d], taps_.kernel[d], taps_.dilation[d], positions_[d]);
    };
    for (lag[0] = 0; lag[0] <= reach(0); ++lag[0])
      for (lag[1] = lag[0] > 0 ? -reach(1) : 0; lag[1] <= reach(1); ++lag[1])
        for (lag[2] = lag[0] > 0 || lag[1] > 0 ? -reach(2) : 0; lag[2] <= reach(2); ++lag[2])
          lags_.push_back({{lag[0], lag[1], lag[2]}, {axis(0), axis(1), axis(2)}});
    task_offsets_.push_back(0);
    for (int64_t task = 0; task < tasks(); ++task)
      task_offsets_.push_back(task_offsets_.back() +
                              (is_needed(task) ? lags_[task % lags()].pairs() * kArea : 0));
  }

  int64_t lags() const { return lags_.size(); }
  int64_t tasks() const { return panels_ * panels_ * lags(); }
  int64_t task_of(int64_t p, int64_t q, int64_t lag) const {
    return (p * panels_ + q) * lags() + lag;
  }
  // At lag zero (the first) a pair of panels is its own mirror.
  bool is_needed(int64_t task) const {
    return task % lags() > 0 || task / lags() % panels_ <= task / lags() / panels_;
  }

  // Products of tap i of panel p with tap j of panel q, [kPanel][kPanel].
  void copy_pair(T* to, int64_t p, int64_t i, int64_t q, int64_t j) {
    std::array<int64_t, 3> a, b, lag;
    for (int d = 2; d >= 0; --d) {
      a[d] = i % taps_.kernel[d];
      b[d] = j % taps_.kernel[d];
      i /= taps_.kernel[d];
      j /= taps_.kernel[d];
    }
    const bool mirrored = b < a || (a == b && q > p);
    if (mirrored) {
      std::swap(a, b);
      std::swap(p, q);
    }
    for (int d = 0; d < 3; ++d) lag[d] = b[d] - a[d];
    const auto known = std::lower_bound(lags_.begin(), lags_.end(), lag,
                                        [](const Lag& one, const auto& at) { return one.at < at; });
    const T* from = blocks_->data() + task_offsets_[task_of(p, q, known - lags_.begin())] +
                    known->pair(a[0], a[1], a[2]) * kArea;
    if (mirrored)
      interleave<T>(to, kPanel<T>, from, 1, kPanel<T>, kPanel<T>, kPanel<T>);
    else
      std::copy(from, from + kArea, to);
  }

  // Copies the items of a chunk into the panels, zeros around them.
  void pack(int64_t begin, int64_t items) {
    constexpr int64_t kLines = 8;  // of a task
    const int64_t lines = lengths_[0] * lengths_[1], shares = ceil_div(lines, kLines);
    context_.parallel_for(panels_ * items * shares, [&](int64_t task) {
      const int64_t share = task % shares, item = task / shares % items, p = task / shares / items;
      const int64_t n = (begin + item) / row_blocks_, block = (begin + item) % row_blocks_;
      int64_t from[3];
      for (int d = 0; d < 3; ++d)
        from[d] = (d == outer_ ? block * row_block_ : 0) - taps_.padding[d];
      const int64_t lo = std::clamp<int64_t>(-from[2], 0, lengths_[2]);
      const int64_t hi = std::clamp<int64_t>(x_.size[5] - from[2], lo, lengths_[2]);
      for (int64_t line = share * kLines; line < std::min(lines, (share + 1) * kLines); ++line) {
        T* to =
            arrays_->data() + (p * capacity() + item * plane() + line * lengths_[2]) * kPanel<T>;
        const int64_t z = line / lengths_[1] + from[0], y = line % lengths_[1] + from[1];
        const bool inside = z >= 0 && z < x_.size[3] && y >= 0 && y < x_.size[4] && lo < hi;
        std::fill(to, to + (inside ? lo : lengths_[2]) * kPanel<T>, T(0));
        if (!inside) continue;
        std::fill(to + hi * kPanel<T>, to + lengths_[2] * kPanel<T>, T(0));
        interleave(to + lo * kPanel<T>, kPanel<T>,
                   x_.data + n * x_.stride[1] + (first_ + p * kPanel<T>)*x_.stride[2] +
                       z * x_.stride[3] + y * x_.stride[4] + (from[2] + lo) * x_.stride[5],
                   x_.stride[5], x_.stride[2], width(p), hi - lo);
      }
    });
  }

  // Adds a chunk's products of two panels at one lag to the sums of the lag's pairs.
  void add_task(int64_t task, int64_t begin, int64_t items) {
    if (!is_needed(task)) return;
    const Lag& lag = lags_[task % lags()];
    const int64_t q = task / lags() % panels_, p = task / lags() / panels_;
    const T* rows = arrays_->data() + p * capacity() * kPanel<T>;
    const int64_t shift = flat(lag.at[0] * taps_.dilation[0], lag.at[1] * taps_.dilation[1],
                               lag.at[2] * taps_.dilation[2]);
    const T* columns = arrays_->data() + (q * capacity() + shift) * kPanel<T>;
    T* sums = blocks_->data() + task_offsets_[task];
    alignas(64) T tile[kArea];
    for (const Segment& z : lag.axes[0].segments)
      for (const Segment& y : lag.axes[1].segments)
        for (const Segment& x : lag.axes[2].segments) {
          const Segment* region[3] = {&z, &y, &x};
          std::fill(tile, tile + kArea, T(0));
          multiply_region(region, begin, items, rows, width(p), columns, width(q), tile);
          for (int64_t iz = z.first_tap; iz < z.first_tap + z.taps; ++iz)
            for (int64_t iy = y.first_tap; iy < y.first_tap + y.taps; ++iy)
              for (int64_t ix = x.first_tap; ix < x.first_tap + x.taps; ++ix) {
                T* sum = sums + lag.pair(iz, iy, ix) * kArea;
                for (int64_t e = 0; e < width(p) * kPanel<T>; ++e) sum[e] += tile[e];
              }
        }
  }

  // tile += sum over the region's positions of rows * columns, a piece of positions at a time.
  void multiply_region(const Segment* const region[3], int64_t begin, int64_t items, const T* rows,
                       int64_t row_count, const T* columns, int64_t column_count, T* tile) const {
    int64_t at[tuning::kLagPositions], used = 0;
    auto flush = [&] {
      if (used > 0)
        outer_panel<T>(Listed<T>{rows, columns, at, used}, row_count, column_count,
                       Store<T>{tile, kPanel<T>, true});
      used = 0;
    };
    for (int64_t item = 0; item < items; ++item) {
      const int64_t start = (begin + item) % row_blocks_ * row_block_;
      int64_t lo[3], hi[3];
      for (int d = 0; d < 3; ++d) {
        lo[d] = region[d]->begin - (d == outer_ ? start : 0);
        hi[d] = region[d]->end - (d == outer_ ? start : 0);
      }
      lo[outer_] = std::max<int64_t>(lo[outer_], 0);
      hi[outer_] = std::min(hi[outer_], row_block_);
      for (int64_t z = lo[0]; z < hi[0]; ++z)
        for (int64_t y = lo[1]; y < hi[1]; ++y)
          for (int64_t x = lo[2]; x < hi[2]; ++x) {
            at[used++] = (item * plane() + flat(z, y, x)) * kPanel<T>;
            if (used == tuning::kLagPositions) flush();
          }
    }
    flush();
  }

  const Context& context_;
  const Grid<const T>& x_;
  int64_t first_, channels_, panels_;
  Taps taps_;
  int outer_ = 2;
  int64_t positions_[3], total_[3];  // of the output, and of the padded input
  int64_t lengths_[3];               // of an item
  int64_t row_block_, row_blocks_, items_;
  std::vector<Lag> lags_;
  std::vector<int64_t> task_offsets_;
  std::optional<Scratch<T>> arrays_, blocks_;
};
