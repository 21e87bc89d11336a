// Sums over samples and columns for every block of the weight.

// Sums terms over all samples and columns for every block of the weight, and updates outs.
// term(maker, block, begin, end, totals) adds the units' share to the total of each, which is laid
// out like the block.
template <class T, size_t kOuts, class Term>
void sum_over_units(const Context& context, const Grid<T> (&outs)[kOuts], Update update,
                    const Correlation<T>& p, Term term) {
  const int64_t units = p.samples * p.columns;
  const Partition part = partition_for_sums(p);
  const auto blocks = cut(p.taps.groups, p.rows, p.channels, part.rows, part.channels);
  const int64_t size = part.size(), all = kOuts * size;
  auto finish = [&](const Block& block, const T* total) {
    for (size_t k = 0; k < kOuts; ++k)
      update_weight(outs[k], update, p, block, total + k * size, part.choice.layout);
  };
  Scratch<T> partial(part.runs > 1 ? part.runs * all * static_cast<int64_t>(blocks.size()) : 0);
  context.parallel_for(blocks.size() * part.runs, [&](int64_t task) {
    const int64_t b = task / part.runs, run = task % part.runs;
    Scratch<T> own(part.runs > 1 ? 0 : all);
    T* total = part.runs > 1 ? partial.data() + task * all : own.data();
    T* totals[kOuts];
    for (size_t k = 0; k < kOuts; ++k) totals[k] = total + k * size;
    BlockMaker<T> maker(p, part.rows, part.channels, part.choice);
    const auto [begin, end] = run_range(units, part.runs, run);
    term(maker, blocks[b], begin, end, totals);
    if (part.runs == 1) finish(blocks[b], total);
  });
  for (size_t b = 0; part.runs > 1 && b < blocks.size(); ++b) {
    T* total = partial.data() + b * part.runs * all;
    for (int64_t run = 1; run < part.runs; ++run)
      for (int64_t i = 0; i < all; ++i) total[i] += total[run * all + i];
    finish(blocks[b], total);
  }
}
