// D[a, j] = sum over samples and positions of f(small[n, a, t]) * g(large[n, window j, t]), for
// many rows. Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.
//
// One matrix product for each group: positions of several samples follow each other, so that sums
// stay in registers for long. Windows of a few channels are packed into panels [position][kPanel],
// once for all rows. Parallel over channels; chunks of positions are added in order.

constexpr int64_t kChunkPositions = 512;  // held at a time, about

// Whether that is faster than blocks that take one sample after another, as measured, and a slab of
// few positions can be cut off.
template <class T>
bool prefers_panels(const Correlation<T>& p) {
  const int64_t *size = p.small.size + 3,
                *outer = std::find_if(size, size + 2, [](int64_t length) { return length > 1; });
  return p.columns == 1 && p.channels >= 8 && p.positions / *outer <= kChunkPositions &&
         p.rows >= (p.positions <= 2 * kChunkPositions ? 16 : 32);
}

// A slab of a sample's positions, and where they begin in a chunk.
struct Piece {
  int64_t sample, slab, first;
};

template <class T, class F, class G>
void weight_by_panels(const Context& context, Grid<T> out, Update update, const Correlation<T>& p,
                      F f, G g) {
  constexpr int64_t kDepth = 256;  // of a product: a panel stays in the first-level cache
  // Channels of a task: no sum depends on them, so threads may decide.
  constexpr int64_t kMost = 8;
  const int64_t few = std::clamp<int64_t>(ceil_div(p.channels, context.threads), 1, kMost);
  const Planes planes = Planes::make<T>(p.axes(), kMost, kPlaneBytes, kChunkPositions);
  const auto counted = [&](int64_t slab) {
    return planes.count(0, slab) * planes.count(1, slab) * planes.count(2, slab);
  };
  const int64_t together = std::max<int64_t>(1, kChunkPositions / counted(0)) * counted(0);
  const int64_t capacity = std::min(together, p.samples * p.positions);
  const int64_t tasks = ceil_div(p.channels, few), width = few * p.kernel;
  const int64_t panels = ceil_div(width, kPanel<T>);
  const Layout layout{Way::panels, panels * kPanel<T>, p.kernel, 1};
  std::vector<int64_t> offsets(width);
  for (int64_t b = 0; b < few; ++b)
    for (const auto& [offset, index] : planes.tap_offsets(p.taps.kernel))
      offsets[b * p.kernel + index] = b * planes.phases * planes.plane + offset;
  const int64_t held = p.rows * capacity, summed = tasks * p.rows * layout.row;
  Scratch<T> rows(held, held), totals(summed, summed);

  // rows[a][position] of a piece.
  auto copy_piece = [&](T* to, int64_t channel, const Piece& piece) {
    const Grid<const T>& s = p.small;
    const T* from = s.data + piece.sample * s.stride[1] + channel * s.stride[2];
    for (int d = 0; d < 3; ++d) from += planes.begin(d, piece.slab) * s.stride[3 + d];
    const int64_t nx = planes.count(2, piece.slab);
    for (int64_t z = 0; z < planes.count(0, piece.slab); ++z)
      for (int64_t y = 0; y < planes.count(1, piece.slab); ++y, to += nx)
        copy_row(to, from + z * s.stride[3] + y * s.stride[4], nx, s.stride[5], f);
  };
  // panels[panel][position][kPanel] of a piece, from its arrays.
  auto pack_piece = [&](T* to, int64_t depth, const T* arrays, int64_t columns, int64_t slab) {
    const int64_t nx = planes.count(2, slab);
    for (int64_t j = 0; j < columns; j += kPanel<T>) {
      T* line = to + j * depth;
      for (int64_t z = 0; z < planes.count(0, slab); ++z)
        for (int64_t y = 0; y < planes.count(1, slab); ++y, line += nx * kPanel<T>)
          gather_lines(line, kPanel<T>, arrays + planes.row(z, y), offsets.data() + j,
                       std::min<int64_t>(kPanel<T>, columns - j), nx);
    }
  };
  auto add_chunk = [&](int64_t group, const std::vector<Piece>& pieces, int64_t used, bool first) {
    context.parallel_for(p.rows, [&](int64_t a) {
      for (const Piece& piece : pieces)
        copy_piece(rows.data() + a * capacity + piece.first, group * p.rows + a, piece);
    });
    context.parallel_for(tasks, [&](int64_t task) {
      const int64_t b = group * p.channels + task * few;
      const int64_t channels = std::min(few, p.channels - task * few);
      const int64_t columns = channels * p.kernel;
      Scratch<T> arrays(few * planes.phases * planes.plane + planes.flat);
      Scratch<T> windows(panels * kPanel<T> * used, panels * kPanel<T> * used);
      for (const Piece& piece : pieces) {
        fill_planes<T>(arrays.data(), planes, piece.slab, p.large, 0, piece.sample, b, b + channels,
                       g);
        pack_piece(windows.data() + piece.first * kPanel<T>, used, arrays.data(), columns,
                   piece.slab);
      }
      T* total = totals.data() + task * p.rows * layout.row;
      for (int64_t j = 0; j < columns; j += kPanel<T>)
        for (int64_t k = 0; k < used; k += kDepth)
          product_rows<T>(rows.data() + k, capacity, 1, p.rows,
                          windows.data() + j * used + k * kPanel<T>, columns - j,
                          std::min(kDepth, used - k), total + j, layout.row, !first || k > 0);
    });
  };

  for (int64_t group = 0; group < p.taps.groups; ++group) {
    std::vector<Piece> pieces;
    int64_t used = 0;
    bool first = true;
    auto add = [&] {
      add_chunk(group, pieces, used, std::exchange(first, false));
      pieces.clear();
      used = 0;
    };
    for (int64_t n = 0; n < p.samples; ++n)
      for (int64_t slab = 0; slab < planes.slabs(); ++slab) {
        if (used + counted(slab) > capacity) add();
        pieces.push_back({n, slab, used});
        used += counted(slab);
      }
    add();
    context.parallel_for(tasks, [&](int64_t task) {
      const int64_t b = task * few;
      update_weight(out, update, p, {group, 0, p.rows, b, std::min(p.channels, b + few)},
                    totals.data() + task * p.rows * layout.row, layout);
    });
  }
}
