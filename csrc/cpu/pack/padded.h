// Padded images of a tensor's channels, some rows of positions (a row block) at a time.

// Axes, and the positions of the outermost one that are held at a time.
struct Planes {
  Axes axes;
  int outer;           // the row blocks cut this axis: the first of length over one
  int64_t row_block;   // positions of it in a full row block
  int64_t lengths[3];  // of a full row block
  int64_t phases;      // arrays a channel
  int64_t plane;       // entries from one array to the next
  int64_t flat;        // entries from a row block's first position to its last, in whole vectors

  template <class T>
  static Planes make(const Axes& axes, int64_t channels, int64_t bytes,
                     int64_t most_positions = std::numeric_limits<int64_t>::max()) {
    Planes p{axes, 2, 0, {}, 1, 0, 0};
    for (int d = 2; d >= 0; --d) {
      if (p.axes[d].positions > 1) p.outer = d;
      p.phases *= std::max<int64_t>(1, p.axes[d].phases.size());
    }
    const Axis& cut = p.axes[p.outer];
    int64_t inner = 1;
    for (int d = p.outer + 1; d < 3; ++d) inner *= p.axes[d].length;
    const int64_t halo = cut.length - cut.positions;
    const int64_t afford = bytes / std::max<int64_t>(1, channels * p.phases * inner * sizeof(T));
    p.row_block = std::clamp<int64_t>(afford - halo, std::min<int64_t>(cut.positions, 2 * halo + 1),
                                      std::max<int64_t>(1, cut.positions));
    int64_t row = 1;
    for (int d = p.outer + 1; d < 3; ++d) row *= p.axes[d].positions;
    p.row_block = std::clamp<int64_t>(most_positions / std::max<int64_t>(1, row), 1, p.row_block);
    // As many row blocks as that takes, all of about one size.
    p.row_block =
        std::max<int64_t>(1, ceil_div(cut.positions, ceil_div(cut.positions, p.row_block)));
    for (int d = 0; d < 3; ++d) p.lengths[d] = p.axes[d].length;
    p.lengths[p.outer] = p.row_block + halo;
    const int64_t entries = p.lengths[0] * p.lengths[1] * p.lengths[2];
    // An odd number of cache lines: else the arrays of many channels would share few cache sets.
    constexpr int64_t kLine = 64 / sizeof(T);
    p.plane = (ceil_div(entries, kLine) | 1) * kLine;
    p.flat = round_up(entries, kWidth<T>);
    return p;
  }

  int64_t row_blocks() const {
    const int64_t total = axes[outer].positions;
    return total == 0 ? 0 : (total + row_block - 1) / row_block;
  }
  // Positions of axis d in row block number `index`, and the first of them.
  int64_t begin(int d, int64_t index) const { return d == outer ? index * row_block : 0; }
  int64_t count(int d, int64_t index) const {
    return d == outer ? std::min(row_block, axes[d].positions - index * row_block)
                      : axes[d].positions;
  }
  int64_t positions(int64_t index) const {
    return count(0, index) * count(1, index) * count(2, index);
  }
  // Entries of axis d that the positions of a row block read.
  int64_t filled(int d, int64_t index) const {
    return d == outer ? count(d, index) + axes[d].length - axes[d].positions : lengths[d];
  }
  // Flat entries that hold all positions of row block `index`, rounded up to whole vectors.
  template <class T>
  int64_t extent(int64_t index) const {
    int64_t last = 0;
    for (int d = 0; d < 3; ++d) last = last * lengths[d] + count(d, index) - 1;
    return round_up(last + 1, kWidth<T>);
  }
  // Positions [first, second) of row block `index` at which a tap of axis d reads the source, and
  // not the zeros beside it.
  std::pair<int64_t, int64_t> inside(int d, int64_t tap, int64_t index) const {
    const Axis& axis = axes[d];
    const Tap& t = axis.taps[tap];
    auto position = [&](int64_t bound) {
      const int64_t first = begin(d, index) + t.offset + axis.first;
      return std::clamp<int64_t>(ceil_div(bound - axis.phases[t.phase], axis.stride) - first, 0,
                                 count(d, index));
    };
    return {position(0), position(axis.source)};
  }
  // The share of an axis's taps and positions at which they read the source.
  double within(int d) const {
    const int64_t taps = axes[d].taps.size();
    int64_t found = 0;
    for (int64_t tap = 0; tap < taps; ++tap)
      for (int64_t row_block = 0; row_block < (d == outer ? row_blocks() : 1); ++row_block)
        found += inside(d, tap, row_block).second - inside(d, tap, row_block).first;
    return double(found) / std::max<int64_t>(1, taps * axes[d].positions);
  }
  int64_t row(int64_t z, int64_t y) const { return (z * lengths[1] + y) * lengths[2]; }

  // Offsets of every tap from a channel's first array, with the tap's index in the kernel.
  std::vector<std::pair<int64_t, int64_t>> tap_offsets(const int64_t kernel[3]) const {
    std::vector<std::pair<int64_t, int64_t>> found;
    for (const Tap& z : axes[0].taps)
      for (const Tap& y : axes[1].taps)
        for (const Tap& x : axes[2].taps) {
          const int64_t phase =
              (z.phase * axes[1].phases.size() + y.phase) * axes[2].phases.size() + x.phase;
          const int64_t entry = row(z.offset, y.offset) + x.offset;
          const int64_t index = (z.index * kernel[1] + y.index) * kernel[2] + x.index;
          found.emplace_back(phase * plane + entry, index);
        }
    return found;
  }
};

// Zeros in whole vectors: what they overwrite beyond the row is filled later, or is not used.
template <class T>
inline void zero_row(T* row, int64_t count) {
  if (count <= 0) return;
  store(row, Reg<T>{});  // on its own: GCC makes a call of the loop
  for (int64_t i = kWidth<T>; i < count; i += kWidth<T>) store(row + i, Reg<T>{});
}

// Prefetches entries that follow each other.
template <class T>
inline void prefetch_row(const T* row, int64_t count, int64_t stride) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; stride == 1 && i < count; i += kLine) __builtin_prefetch(row + i);
}

// Fills the arrays of channels [c0, c1) of sample n, column v, for one row block, in the order of
// their addresses, and fetches the next channel meanwhile. Zeros outside the source may be there
// already.
template <class T, class F>
void fill_planes(T* dst, const Planes& p, int64_t row_block, const Grid<const T>& src, int64_t v,
                 int64_t n, int64_t c0, int64_t c1, F f, bool has_zeros = false) {
  const T* base = src.channel(v, n, 0);
  int64_t lengths[3], start[3], steps[3];
  for (int d = 0; d < 3; ++d) {
    lengths[d] = p.filled(d, row_block);
    start[d] = p.begin(d, row_block) + p.axes[d].first;
    steps[d] = p.axes[d].stride * src.stride[3 + d];
  }
  // Phases, and their entries [first, last) that lie inside the source.
  struct Phase {
    int64_t shift, first, last;
  };
  auto phases_of = [&](int d) {
    const Axis& axis = p.axes[d];
    auto entry = [&](int64_t bound) {
      return std::clamp<int64_t>(ceil_div(bound, axis.stride) - start[d], 0, lengths[d]);
    };
    std::vector<Phase> found;
    for (int64_t phase : axis.phases) {
      const int64_t first = entry(-phase);
      found.push_back(
          {phase * src.stride[3 + d], first, std::max(first, entry(axis.source - phase))});
    }
    return found;
  };
  const auto of_z = phases_of(0), of_y = phases_of(1), of_x = phases_of(2);
  auto zeros = [&](T* row, int64_t count) {
    if (!has_zeros) zero_row(row, count);
  };
  for (int64_t c = c0; c < c1; ++c)
    for (const auto& [shift_z, front, back] : of_z)
      for (const auto& [shift_y, top, bottom] : of_y)
        for (const auto& [shift_x, left, right] : of_x) {
          const T* corner = base + c * src.stride[2] + start[0] * steps[0] + shift_z +
                            (start[1] + top) * steps[1] + shift_y + (start[2] + left) * steps[2] +
                            shift_x;
          for (int64_t z = 0; z < lengths[0]; ++z) {
            T* row = dst + p.row(z, 0);
            if (z < front || z >= back) {
              zeros(row, lengths[1] * p.lengths[2]);
              continue;
            }
            zeros(row, top * p.lengths[2]);
            row += top * p.lengths[2];
            const T* from = corner + z * steps[0];
            for (int64_t y = top; y < bottom; ++y, row += p.lengths[2], from += steps[1]) {
              zeros(row, left);
              if (c + 1 < c1) prefetch_row(from + src.stride[2], right - left, steps[2]);
              copy_row(row + left, from, right - left, steps[2], f);
              zeros(row + right, lengths[2] - right);
            }
            zeros(row, (lengths[1] - bottom) * p.lengths[2]);
          }
          dst += p.plane;
        }
}

// Fills rows of the positions themselves, laid out like the arrays. What lies between positions is
// not written: `dst` must be zero there when it is new.
template <class T, class F>
void fill_positions(T* dst, int64_t pitch, const Planes& p, int64_t row_block,
                    const Grid<const T>& src, int64_t v, int64_t n, int64_t c0, int64_t c1, F f) {
  const T* base = src.channel(v, n, 0);
  const int64_t nz = p.count(0, row_block), ny = p.count(1, row_block), nx = p.count(2, row_block);
  const T* corner = base + p.begin(0, row_block) * src.stride[3] +
                    p.begin(1, row_block) * src.stride[4] + p.begin(2, row_block) * src.stride[5];
  // A short last row block, and the first one after it, find another row block's values in their
  // gaps.
  if (p.row_blocks() > 1 && (row_block == 0 || row_block == p.row_blocks() - 1))
    std::fill(dst, dst + (c1 - c0) * pitch, T(0));
  for (int64_t c = c0; c < c1; ++c, dst += pitch)
    for (int64_t z = 0; z < nz; ++z)
      for (int64_t y = 0; y < ny; ++y)
        copy_row(dst + p.row(z, y),
                 corner + c * src.stride[2] + z * src.stride[3] + y * src.stride[4], nx,
                 src.stride[5], f);
}
