// How the weight and the samples are cut into tasks. It depends on sizes alone, never on threads:
// the cut decides the order of sums.
struct Partition {
  int64_t rows, channels;  // of a block
  Choice choice;           // how blocks are made
  int64_t runs = 1;        // of (sample, column) pairs

  int64_t size() const { return choice.layout.size(rows, channels); }
};

// Whether blocks may be made without room for their values beside the sums.
template <class T>
bool may_transform(const Correlation<T>& p) {
  return Winograd<T, 3, 2>::applies(p) || Winograd<T, 5, 2>::applies(p);
}

// The cheapest cut into blocks of at most `most_values`: each cut of the channels copies the rows
// once more for every column, each cut of the rows the windows.
template <class T>
Partition partition(const Correlation<T>& p, int64_t most_values) {
  Partition best{};
  double least = std::numeric_limits<double>::infinity();
  auto offer = [&](int64_t rows, int64_t channels) {
    const Choice choice = choose(p, rows, channels);
    const double cost = ceil_div(p.rows, rows) * ceil_div(p.channels, channels) * choice.cost;
    if (cost < least) {
      least = cost;
      best = {rows, channels, choice};
    }
  };
  const int64_t unit = may_transform(p) ? kWidth<T> : 1;
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
  const bool small = weight <= tuning::kBlockValues;
  const int64_t tasks = small ? 8 : 4;
  const int64_t copies = small ? tasks : weight <= 4 * tuning::kBlockValues ? 2 : 1;
  const int64_t runs = std::min(copies, p.samples * p.columns);
  const int64_t least = small ? 256 : tuning::kLeastBlockValues;
  const int64_t share = weight * runs / tasks;
  const int64_t most = may_transform(p) ? 2 * tuning::kBlockValues : tuning::kBlockValues;
  Partition part = partition(p, std::clamp(share, least, most));
  part.runs = runs;
  return part;
}

// The unit numbers of run r out of `runs`.
inline std::pair<int64_t, int64_t> run_range(int64_t units, int64_t runs, int64_t r) {
  return {units * r / runs, units * (r + 1) / runs};
}
