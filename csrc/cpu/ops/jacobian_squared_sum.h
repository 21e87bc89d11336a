// D[a, b, k] = sum_{n, v} G[v, n, a, b, k]^2.
//
// Parallel over blocks of the weight, each of which visits all samples and columns in order; where
// the weight is small, over fixed runs of samples and columns, whose sums are added in order.
// Either way the bits do not depend on the number of threads.

// How the weight and the samples are cut into tasks. It depends on sizes alone, never on threads:
// the cut decides the order of sums.
struct Partition {
  int64_t rows, channels;  // of a block
  Choice choice;           // how blocks are made
  int64_t runs = 1;        // of (sample, column) pairs

  int64_t size() const { return choice.layout.size(rows, channels); }
};

// Values of a block: with the columns beside them they fit the second-level cache.
constexpr int64_t kBlockValues = 16384, kLeastValues = 4096;

// The cheapest cut into blocks of at most `most_values`: each cut of the channels copies the rows
// once more for every column, each cut of the rows the windows.
template <class T>
Partition partition(const Correlation<T>& p, int64_t most_values) {
  Partition best{};
  double least = std::numeric_limits<double>::infinity();
  auto offer = [&](int64_t rows, int64_t channels) {
    const Choice choice = choose_way(p, rows, channels);
    const double cost = ceil_div(p.rows, rows) * ceil_div(p.channels, channels) * choice.cost;
    if (cost < least) {
      least = cost;
      best = {rows, channels, choice};
    }
  };
  const int64_t unit = has_tiling(p) ? kWidth<T> : 1;
  for (int64_t cuts = 1, wide = 0; wide != std::min(unit, p.channels); cuts += ceil_div(cuts, 4)) {
    wide = std::min(round_up(ceil_div(p.channels, cuts), unit), p.channels);
    const int64_t tall =
        std::clamp<int64_t>(most_values / (wide * p.kernel), std::min<int64_t>(p.rows, 16), p.rows);
    const int64_t even = ceil_div(p.rows, ceil_div(p.rows, tall));
    offer(even, wide);
    if (tall >= kWidth<T>) offer(std::min(p.rows, round_up(even, kWidth<T>)), wide);
  }
  return best;
}

// Blocks and runs enough for several threads, in even numbers: a small weight is summed in runs of
// the units, each with a copy of its own.
template <class T>
Partition partition_for_sums(const Correlation<T>& p) {
  const int64_t weight = p.taps.groups * p.rows * p.channels * p.kernel;
  const bool small = weight <= kBlockValues;
  const int64_t tasks = small ? 8 : 4;
  const int64_t copies = small ? tasks : weight <= 4 * kBlockValues ? 2 : 1;
  const int64_t runs = std::min(copies, p.samples * p.columns);
  const int64_t least = small ? 256 : kLeastValues;
  const int64_t share = weight * runs / tasks;
  // Tiles hold no values beside the sums.
  const int64_t most = has_tiling(p) ? 2 * kBlockValues : kBlockValues;
  Partition part = partition(p, std::clamp(share, least, most));
  part.runs = runs;
  return part;
}

// The unit numbers of run r out of `runs`.
inline std::pair<int64_t, int64_t> run_range(int64_t units, int64_t runs, int64_t r) {
  return {units * r / runs, units * (r + 1) / runs};
}

// out <- decay * out + scale * value on a strided weight [A, B, kz, ky, kx], for one block.
template <class T>
void update_weight(const Grid<T>& out, Update update, const Correlation<T>& p, const Block& block,
                   const T* value, const Layout& layout) {
  std::vector<int64_t> taps;
  for (int64_t z = 0; z < p.taps.kernel[0]; ++z)
    for (int64_t y = 0; y < p.taps.kernel[1]; ++y)
      for (int64_t x = 0; x < p.taps.kernel[2]; ++x)
        taps.push_back(z * out.stride[3] + y * out.stride[4] + x * out.stride[5]);
  bool flat = out.stride[2] == p.kernel;
  for (int64_t k = 0; k < p.kernel; ++k) flat = flat && taps[k] == k;
  // Rows are brought into the order [row][channel][tap], some at a time.
  constexpr int64_t kRowsAtOnce = 8;
  const int64_t width = block.channels() * p.kernel;
  std::vector<T> lines(kRowsAtOnce * width);
  const T decay = update.decay, scale = update.scale;
  for (int64_t first = 0; first < block.rows(); first += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, block.rows() - first);
    const T* from = value + first * layout.row;
    if (layout.row == 1)
      interleave(lines.data(), width, from, 1, layout.tap, width, rows);
    else
      for (int64_t r = 0; r < rows; ++r)
        layout.each_run(p.taps, [&](int64_t first, int64_t count, int64_t place) {
          interleave(lines.data() + r * width + first, p.kernel, from + r * layout.row + place,
                     layout.channel, layout.tap, count, block.channels());
        });
    for (int64_t r = 0; r < rows; ++r) {
      const T* line = lines.data() + r * width;
      T* to = out.data + (block.group * p.rows + block.a0 + first + r) * out.stride[1] +
              block.b0 * out.stride[2];
      auto put = [&](T& at, T term) { at = (decay == 0 ? T(0) : decay * at) + scale * term; };
      if (flat)
        for (int64_t i = 0; i < width; ++i) put(to[i], line[i]);
      else
        for (int64_t b = 0; b < block.channels(); ++b)
          for (int64_t k = 0; k < p.kernel; ++k)
            put(to[b * out.stride[2] + taps[k]], line[b * p.kernel + k]);
    }
  }
}

// Sums terms over all samples and columns for every block of the weight, and updates outs.
// term(maker, values, block, begin, end, totals) adds the units' share to the total of each; values
// is room for a block's G. All are laid out like the block.
template <class T, size_t kOuts, class Term>
void sum_over_units(const Context& context, const Grid<T> (&outs)[kOuts], Update update,
                    const Correlation<T>& p, Term term) {
  const int64_t units = p.samples * p.columns;
  const Partition part = partition_for_sums(p);
  const auto blocks = cut(p.taps.groups, p.rows, p.channels, part.rows, part.channels);
  const Layout& layout = part.choice.layout;
  const int64_t size = part.size(), all = kOuts * size;
  Scratch<T> partial(part.runs > 1 ? part.runs * all * static_cast<int64_t>(blocks.size()) : 0);
  context.parallel_for(blocks.size() * part.runs, [&](int64_t task) {
    const int64_t b = task / part.runs, run = task % part.runs;
    Scratch<T> own(part.runs > 1 ? 0 : all), values(part.choice.way == Way::tiles ? 0 : size);
    T* total = part.runs > 1 ? partial.data() + task * all : own.data();
    T* totals[kOuts];
    for (size_t k = 0; k < kOuts; ++k) totals[k] = total + k * size;
    BlockMaker<T> maker(p, part.rows, part.channels, part.choice);
    const auto [begin, end] = run_range(units, part.runs, run);
    term(maker, values.data(), blocks[b], begin, end, totals);
    if (part.runs > 1) return;
    for (size_t k = 0; k < kOuts; ++k)
      update_weight(outs[k], update, p, blocks[b], totals[k], layout);
  });
  if (part.runs == 1) return;
  for (size_t b = 0; b < blocks.size(); ++b) {
    T* total = partial.data() + b * part.runs * all;
    for (int64_t run = 1; run < part.runs; ++run)
      for (int64_t i = 0; i < all; ++i) total[i] += total[run * all + i];
    for (size_t k = 0; k < kOuts; ++k)
      update_weight(outs[k], update, p, blocks[b], total + k * size, layout);
  }
}

template <class T>
struct AddSquares {
  T* total;
  template <int C>
  void operator()(int64_t at, int64_t pitch, const Reg<T> (&g)[C]) {
    for (int i = 0; i < C; ++i, at += pitch) store(total + at, load(total + at) + g[i] * g[i]);
  }
};

template <class T>
void jacobian_squared_sum(const Context& context, Grid<T> out, Update update, Grid<const T> small,
                          Grid<const T> large, Taps taps) {
  const Correlation<T> problem(small, large, taps);
  sum_over_units<T>(context, {out}, update, problem,
                    [&](BlockMaker<T>& maker, T* g, const Block& block, int64_t begin, int64_t end,
                        T* const* totals) {
                      AddSquares<T> sink{totals[0]};
                      for (int64_t unit = begin; unit < end; ++unit)
                        maker.visit(g, block, unit / problem.columns, unit % problem.columns, sink);
                    });
}
