// Copies of a tensor's channels in which every tap of a kernel is one flat offset.
//
// An axis of length T (positions) reads a source u = t * stride + shift(k) for its taps k. With
// shift(k) = stride * offset(k) + phase(k), 0 <= phase < stride, that is entry t + offset(k) of the
// phase's own array, of length `length` = T + (largest - smallest offset). Padding is zeros in it.

struct Tap {
  int64_t index;   // k
  int64_t phase;   // which of the axis's phases
  int64_t offset;  // from the start of the phase's array
};

struct Axis {
  int64_t positions = 1;
  int64_t source = 1;  // size of the tensor along this axis
  int64_t stride = 1;
  int64_t first = 0;  // entry q of a phase array is source index (q + first) * stride + phase
  int64_t length = 1;
  std::vector<int64_t> phases;
  std::vector<Tap> taps;

  Axis(int64_t positions_, int64_t source_, int64_t stride_, const std::vector<int64_t>& shifts,
       const std::vector<int64_t>& indices)
      : positions(positions_), source(source_), stride(stride_) {
    int64_t last = 0;
    for (size_t i = 0; i < shifts.size(); ++i) {
      const int64_t phase = ((shifts[i] % stride) + stride) % stride;
      const int64_t offset = (shifts[i] - phase) / stride;
      first = i == 0 ? offset : std::min(first, offset);
      last = i == 0 ? offset : std::max(last, offset);
      auto known = std::find(phases.begin(), phases.end(), phase);
      taps.push_back({indices[i], known - phases.begin(), offset});
      if (known == phases.end()) phases.push_back(phase);
    }
    for (Tap& tap : taps) tap.offset -= first;
    length = positions + last - first;
  }
};

// The axis of a kernel that gathers from the large grid: shift(k) = k * dilation - padding.
inline Axis gather_axis(const Taps& taps, int d, int64_t positions, int64_t source) {
  std::vector<int64_t> shifts, indices;
  for (int64_t k = 0; k < taps.kernel[d]; ++k) {
    shifts.push_back(k * taps.dilation[d] - taps.padding[d]);
    indices.push_back(k);
  }
  return Axis(positions, source, taps.stride[d], shifts, indices);
}

// Three axes, shared by their copies.
class Axes {
 public:
  Axes(Axis z, Axis y, Axis x)
      : axes_(std::make_shared<std::array<Axis, 3>>(
            std::array{std::move(z), std::move(y), std::move(x)})) {}
  const Axis& operator[](int d) const { return (*axes_)[d]; }

 private:
  std::shared_ptr<const std::array<Axis, 3>> axes_;
};

// Axes and the range of positions of the outermost one that is held at a time (a slab).
struct Planes {
  Axes axes;
  int outer;           // the slabs cut this axis: the first of length over one
  int64_t slab;        // positions of it in a full slab
  int64_t lengths[3];  // of a full slab
  int64_t phases;      // arrays a channel
  int64_t plane;       // entries from one array to the next
  int64_t flat;        // entries from a slab's first position to its last, in whole vectors

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
    p.slab = std::clamp<int64_t>(afford - halo, std::min<int64_t>(cut.positions, 2 * halo + 1),
                                 std::max<int64_t>(1, cut.positions));
    int64_t row = 1;
    for (int d = p.outer + 1; d < 3; ++d) row *= p.axes[d].positions;
    p.slab = std::clamp<int64_t>(most_positions / std::max<int64_t>(1, row), 1, p.slab);
    // As many slabs as that takes, all of about one size.
    p.slab = std::max<int64_t>(1, ceil_div(cut.positions, ceil_div(cut.positions, p.slab)));
    for (int d = 0; d < 3; ++d) p.lengths[d] = p.axes[d].length;
    p.lengths[p.outer] = p.slab + halo;
    const int64_t entries = p.lengths[0] * p.lengths[1] * p.lengths[2];
    // An odd number of cache lines: else the arrays of many channels would share few places of it.
    constexpr int64_t kLine = 64 / sizeof(T);
    p.plane = (ceil_div(entries, kLine) | 1) * kLine;
    p.flat = round_up(entries, kWidth<T>);
    return p;
  }

  int64_t slabs() const {
    const int64_t total = axes[outer].positions;
    return total == 0 ? 0 : (total + slab - 1) / slab;
  }
  // Positions of axis d in slab number `index`, and the first of them.
  int64_t begin(int d, int64_t index) const { return d == outer ? index * slab : 0; }
  int64_t count(int d, int64_t index) const {
    return d == outer ? std::min(slab, axes[d].positions - index * slab) : axes[d].positions;
  }
  int64_t positions(int64_t index) const {
    return count(0, index) * count(1, index) * count(2, index);
  }
  // Entries of axis d that the positions of a slab read.
  int64_t filled(int d, int64_t index) const {
    return d == outer ? count(d, index) + axes[d].length - axes[d].positions : lengths[d];
  }
  // Flat entries that hold all positions of slab `index`, rounded up to whole vectors.
  template <class T>
  int64_t extent(int64_t index) const {
    int64_t last = 0;
    for (int d = 0; d < 3; ++d) last = last * lengths[d] + count(d, index) - 1;
    return round_up(last + 1, kWidth<T>);
  }
  // Positions [first, second) of slab `index` at which a tap of axis d reads the source, and not
  // the zeros beside it.
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
      for (int64_t slab = 0; slab < (d == outer ? slabs() : 1); ++slab)
        found += inside(d, tap, slab).second - inside(d, tap, slab).first;
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

// What may be done to entries as they are copied.
struct Identity {
  template <class T>
  T operator()(T x) const {
    return x;
  }
};
struct Square {
  template <class T>
  T operator()(T x) const {
    return x * x;
  }
};

// dst[i] = f(src[i]) for i < count, by vectors of so many bytes, the last of which overlaps the one
// before it; of a short row by smaller ones.
template <int kBytes = kVectorBytes, class T, class F>
inline void copy_dense(T* dst, const T* src, int64_t count, F f) {
  constexpr int64_t kEntries = kBytes / sizeof(T);
  if constexpr (kEntries == 1) {
    if (count > 0) *dst = f(*src);
  } else {
    if (count < kEntries) return copy_dense<kBytes / 2>(dst, src, count, f);
    typedef T Part __attribute__((vector_size(kBytes), aligned(sizeof(T)), may_alias));
    auto copy = [&](int64_t i) {
      *reinterpret_cast<Part*>(dst + i) = f(*reinterpret_cast<const Part*>(src + i));
    };
    for (int64_t i = 0; i < count - kEntries; i += kEntries) copy(i);
    copy(count - kEntries);
  }
}

// dst[i] = f(src[i * stride]) for i < count.
template <class T, class F>
inline void copy_row(T* dst, const T* src, int64_t count, int64_t stride, F f) {
  if (stride == 1) return copy_dense(dst, src, count, f);
  for (int64_t i = 0; i < count; ++i) dst[i] = f(src[i * stride]);
}

// Zeros in whole vectors: what they overwrite beyond the row is filled later, or is not used.
template <class T>
inline void zero_row(T* row, int64_t count) {
  if (count <= 0) return;
  store(row, Reg<T>{});  // on its own: GCC makes a call of the loop
  for (int64_t i = kWidth<T>; i < count; i += kWidth<T>) store(row + i, Reg<T>{});
}

// Asks for entries that are read soon, if they follow each other.
template <class T>
inline void fetch_row(const T* row, int64_t count, int64_t stride) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; stride == 1 && i < count; i += kLine) __builtin_prefetch(row + i);
}

// Four lines of four values, turned: to[x * to_step + c] = f(from[offsets[c] + x]).
template <class F>
inline void turn(float* to, int64_t to_step, const float* from, const int64_t offsets[4], F f) {
  typedef Quarter<float>::Reg Q;
  Q q[4];
  for (int c = 0; c < 4; ++c) {
    __builtin_memcpy(&q[c], from + offsets[c], sizeof(Q));
    q[c] = f(q[c]);
  }
  const Q a = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5);
  const Q b = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5);
  const Q c = __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7);
  const Q d = __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
  const Q out[4] = {
      __builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
      __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  for (int x = 0; x < 4; ++x) __builtin_memcpy(to + x * to_step, &out[x], sizeof(Q));
}
template <class F>
inline void turn(double* to, int64_t to_step, const double* from, const int64_t offsets[4], F f) {
  for (int x = 0; x < 4; ++x)
    for (int c = 0; c < 4; ++c) to[x * to_step + c] = f(from[offsets[c] + x]);
}

// The same of eight lines, for sets whose vectors hold eight values.
template <class T, class F>
inline void turn_eight(T* to, int64_t to_step, const T* from, const int64_t offsets[8], F f) {
  typedef typename Quarter<T>::Reg Q;
  typedef T H __attribute__((vector_size(32), aligned(4), may_alias));
  Q q[8];
  for (int c = 0; c < 8; ++c) {
    __builtin_memcpy(&q[c], from + offsets[c], sizeof(Q));
    q[c] = f(q[c]);
  }
  // Lines c and c + 4 in one vector.
  const auto h0 = __builtin_shufflevector(q[0], q[4], 0, 1, 2, 3, 4, 5, 6, 7);
  const auto h1 = __builtin_shufflevector(q[1], q[5], 0, 1, 2, 3, 4, 5, 6, 7);
  const auto h2 = __builtin_shufflevector(q[2], q[6], 0, 1, 2, 3, 4, 5, 6, 7);
  const auto h3 = __builtin_shufflevector(q[3], q[7], 0, 1, 2, 3, 4, 5, 6, 7);
  const auto a = __builtin_shufflevector(h0, h1, 0, 8, 1, 9, 4, 12, 5, 13);
  const auto b = __builtin_shufflevector(h2, h3, 0, 8, 1, 9, 4, 12, 5, 13);
  const auto c = __builtin_shufflevector(h0, h1, 2, 10, 3, 11, 6, 14, 7, 15);
  const auto d = __builtin_shufflevector(h2, h3, 2, 10, 3, 11, 6, 14, 7, 15);
  auto line = [&](int x) -> H& { return *reinterpret_cast<H*>(to + x * to_step); };
  line(0) = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
  line(1) = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  line(2) = __builtin_shufflevector(c, d, 0, 1, 8, 9, 4, 5, 12, 13);
  line(3) = __builtin_shufflevector(c, d, 2, 3, 10, 11, 6, 7, 14, 15);
}

// Rows of lines: how many, and how far apart they are.
struct Rows {
  int64_t count = 1, to = 0, from = 0;
};

// to[x * to_step + c] = f(from[offsets[c] + x]): lines that start anywhere, side by side, of each
// row.
template <class T, class F = Identity>
[[gnu::noinline]] void gather_lines(T* to, int64_t to_step, const T* from, const int64_t* offsets,
                                    int64_t lines, int64_t count, Rows rows = {}, F f = {}) {
  // Where the last turn of a line begins, so as to end with it.
  const int64_t last = count - 4;
  for (int64_t row = 0; row < rows.count; ++row, to += rows.to, from += rows.from) {
    int64_t c = 0;
    if constexpr (std::is_same_v<T, float> && kVectorBytes >= 32)
      for (; last >= 0 && c + 8 <= lines; c += 8)
        for (int64_t next = 0; next < count; next += 4) {
          const int64_t x = std::min(next, last);
          turn_eight(to + x * to_step + c, to_step, from + x, offsets + c, f);
        }
    for (; last >= 0 && c + 4 <= lines; c += 4)
      for (int64_t next = 0; next < count; next += 4) {
        const int64_t x = std::min(next, last);
        turn(to + x * to_step + c, to_step, from + x, offsets + c, f);
      }
    for (; c < lines; ++c)
      for (int64_t x = 0; x < count; ++x) to[x * to_step + c] = f(from[offsets[c] + x]);
  }
}

// to[x * to_step + c] = f(from[x * step + c * channel_stride]): lines of channels, side by side, of
// each row.
template <class T, class F = Identity>
[[gnu::noinline]] void interleave(T* to, int64_t to_step, const T* from, int64_t step,
                                  int64_t channel_stride, int64_t channels, int64_t count,
                                  Rows rows = {}, F f = {}) {
  constexpr int64_t kLines = 16;
  for (int64_t c = 0; step == 1 && c < channels; c += kLines) {
    const int64_t lines = std::min(kLines, channels - c);
    int64_t offsets[kLines];
    for (int64_t i = 0; i < lines; ++i) offsets[i] = (c + i) * channel_stride;
    gather_lines(to + c, to_step, from, offsets, lines, count, rows, f);
  }
  for (int64_t row = 0; step != 1 && row < rows.count; ++row, to += rows.to, from += rows.from)
    for (int64_t x = 0; x < count; ++x)
      copy_row(to + x * to_step, from + x * step, channels, channel_stride, f);
}

// Fills the arrays of channels [c0, c1) of sample n, column v, for one slab, in the order of their
// addresses, and fetches the next channel meanwhile. Zeros outside the source may be there already.
template <class T, class F>
void fill_planes(T* dst, const Planes& p, int64_t slab, const Grid<const T>& src, int64_t v,
                 int64_t n, int64_t c0, int64_t c1, F f, bool has_zeros = false) {
  const T* base = src.channel(v, n, 0);
  int64_t lengths[3], start[3], steps[3];
  for (int d = 0; d < 3; ++d) {
    lengths[d] = p.filled(d, slab);
    start[d] = p.begin(d, slab) + p.axes[d].first;
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
              if (c + 1 < c1) fetch_row(from + src.stride[2], right - left, steps[2]);
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
void fill_positions(T* dst, int64_t pitch, const Planes& p, int64_t slab, const Grid<const T>& src,
                    int64_t v, int64_t n, int64_t c0, int64_t c1, F f) {
  const T* base = src.channel(v, n, 0);
  const int64_t nz = p.count(0, slab), ny = p.count(1, slab), nx = p.count(2, slab);
  const T* corner = base + p.begin(0, slab) * src.stride[3] + p.begin(1, slab) * src.stride[4] +
                    p.begin(2, slab) * src.stride[5];
  // A short last slab, and the first one after it, find another slab's values in their gaps.
  if (p.slabs() > 1 && (slab == 0 || slab == p.slabs() - 1))
    std::fill(dst, dst + (c1 - c0) * pitch, T(0));
  for (int64_t c = c0; c < c1; ++c, dst += pitch)
    for (int64_t z = 0; z < nz; ++z)
      for (int64_t y = 0; y < ny; ++y)
        copy_row(dst + p.row(z, y),
                 corner + c * src.stride[2] + z * src.stride[3] + y * src.stride[4], nx,
                 src.stride[5], f);
}
