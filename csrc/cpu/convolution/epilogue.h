// What goes through a convolution with f(W) = W or W², towards a layer's input or, transposed, its
// output, and what becomes of the sums.
//
//   conv:        out[b, u] = sum_{a, k, t} f(W[a, b, k]) m[a, t],  t stride - padding + k dilation
//   = u transposed:  out[a, t] = sum_{b, k} f(W[a, b, k]) m[b, t stride - padding + k dilation]
//
// The second gathers from arrays in which every tap is an offset (pack/padded.h). The first is as
// many such gathers as the stride has phases: outputs of one phase read m through the same taps.

// The axis of one phase of a convolution's input: u = t * stride + phase reads m[t + shift].
inline Axis scatter_axis(const Taps& taps, int d, int64_t phase, int64_t inputs, int64_t source) {
  std::vector<int64_t> shifts, indices;
  for (int64_t k = 0; k < taps.kernel[d]; ++k) {
    const int64_t distance = phase + taps.padding[d] - k * taps.dilation[d];
    if (distance % taps.stride[d] == 0) {
      shifts.push_back(distance / taps.stride[d]);
      indices.push_back(k);
    }
  }
  return Axis(ceil_div(inputs - phase, taps.stride[d]), source, 1, shifts, indices);
}

// Output channels at a time, at most, whose rows are stored as they are made.
constexpr int64_t kMostRows = 6;

// Rows that will be read or written where sums are due: asked for a tile at a time, as more at once
// would wait for each other.
template <class T>
struct Fetch {
  const T* rows[2 * kMostRows];
  int64_t count = 0;

  void add(const T* row, int64_t step) {
    if (step == 1) rows[count++] = row;
  }
  void operator()(int64_t begin, int64_t end) const {
    asm volatile("");  // or GCC leaves out calls of a function that only fetches
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t x = begin; x < end; x += kLine) __builtin_prefetch(rows[i] + x);
  }
};

// Rows of results, `pitch` apart, and a mask: what is not positive there makes a result zero.
template <class T>
struct MaskedRows {
  T* data = nullptr;
  int64_t pitch = 0;
  const T* mask = nullptr;
  int64_t mask_pitch = 0;

  // Asks for the lines of the cache that begin in [begin, end), of so many rows, for the
  // second-level one.
  void fetch(int64_t count, int64_t begin, int64_t end) const {
    asm volatile("");  // or GCC leaves out calls of a function that only fetches
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t i = 0; data && i < count; ++i)
      for (int64_t x = round_up(begin, kLine); x < end; x += kLine) {
        __builtin_prefetch(data + i * pitch + x, 0, 1);
        if (mask) __builtin_prefetch(mask + i * mask_pitch + x, 0, 1);
      }
  }
};

// Where sample n and channel c of a grid have the position u.
template <class G>
auto* place(const G& grid, int64_t n, int64_t c, const auto& u) {
  return grid.data + n * grid.stride[1] + c * grid.stride[2] + u[0] * grid.stride[3] +
         u[1] * grid.stride[4] + u[2] * grid.stride[5];
}

// What becomes of the sums: out <- decay * out + scale * sum * phi'(z), or phi'(z)^2.
template <class T>
struct Result {
  Grid<T> out;
  Update update;
  Grid<const T> z;  // not read without slopes
  Slopes<T> slopes;
  bool is_mask = false;  // the sums themselves, or zeros where z is not positive

  bool has_slopes() const { return slopes.fill != nullptr; }

  // values[x] belongs to channel c at u + x * step along the last axis.
  void write(int64_t n, int64_t c, const std::array<int64_t, 3>& u, int64_t step, const T* values,
             int64_t count) const {
    T* to = place(out, n, c, u);
    const int64_t stride = out.stride[5] * step;
    write_row<T>(to, stride, update, values, slopes, has_slopes() ? place(z, n, c, u) : nullptr,
                 z.stride[5] * step, count);
  }

  // Whether rows of so many outputs follow each other like their entries.
  bool rows_are_one(int64_t count) const {
    return out.stride[4] == count * out.stride[5] &&
           (!has_slopes() || z.stride[4] == count * z.stride[5]);
  }

  // Where sums of channels from c on can be stored as they are made: along rows of steps of `step`.
  MaskedRows<T> direct(int64_t n, int64_t c, const std::array<int64_t, 3>& u, int64_t step) const {
    if (!is_mask || out.stride[5] * step != 1 || (has_slopes() && z.stride[5] * step != 1))
      return {};
    return {place(out, n, c, u), out.stride[2], has_slopes() ? place(z, n, c, u) : nullptr,
            z.stride[2]};
  }

  // What write() will touch of channels [c, c + block).
  Fetch<T> fetch(int64_t n, int64_t c, int64_t block, const std::array<int64_t, 3>& u,
                 int64_t step) const {
    Fetch<T> found;
    for (int64_t i = 0; i < block; ++i) {
      found.add(place(out, n, c + i, u), out.stride[5] * step);
      if (has_slopes()) found.add(place(z, n, c + i, u), z.stride[5] * step);
    }
    return found;
  }
};

template <class T, bool kSquared>
Result<T> result_of(const Grid<T>& out, Update update, const Grid<const T>& z,
                    Activation activation, double slope) {
  const bool masks = activation == Activation::identity || activation == Activation::relu;
  return {out,
          update,
          z,
          Slopes<T>(activation, slope, kSquared),
          masks && update.decay == 0 && update.scale == 1};
}

// What goes through a layer, by W or by W², and what becomes of it. Several have the same sizes.
template <class T>
struct Stream {
  Grid<const T> m;
  Result<T> result;
  bool squared;
};

// A convolution of streams of the same sizes. Weight [A, B / groups, k]: the output is b of the
// group's a for a convolution, else a.
template <class T>
struct Convolution {
  std::span<const Stream<T>> streams;
  Grid<const T> weight;
  Taps taps;
  bool transposed;

  const Grid<T>& out() const { return streams[0].result.out; }
  const Grid<const T>& m() const { return streams[0].m; }
  // Of one group.
  int64_t sources() const { return m().size[2] / taps.groups; }
  int64_t rows() const { return out().size[2] / taps.groups; }
  int64_t source_stride() const { return weight.stride[transposed ? 2 : 1]; }
  int64_t row_stride() const { return weight.stride[transposed ? 1 : 2]; }
  // Where the weights of a group's first source and of row r begin.
  const T* weights(int64_t group, int64_t r) const {
    return weight.data + (transposed ? 0 : group * sources()) * source_stride() +
           (transposed ? group * rows() + r : r) * row_stride();
  }
};

// Outputs at + step * position, which read through the same taps.
struct OutputPhase {
  Axes axes;
  std::array<int64_t, 3> at, step;

  int64_t positions() const { return axes[0].positions * axes[1].positions * axes[2].positions; }
  // The output of a position of a slab.
  std::array<int64_t, 3> output(const Planes& p, int64_t slab, int64_t z, int64_t y) const {
    return {(p.begin(0, slab) + z) * step[0] + at[0], (p.begin(1, slab) + y) * step[1] + at[1],
            p.begin(2, slab) * step[2] + at[2]};
  }
};

// Arrays of a phase, in slabs so small that every thread gets several.
template <class T>
Planes stream_planes(const Context& context, const Convolution<T>& c, const OutputPhase& phase,
                     int64_t most_positions) {
  constexpr int64_t kBytes = 192 << 10, kFewest = 256;
  const int64_t share = c.out().size[1] * c.taps.groups * phase.positions() / (4 * context.threads);
  return Planes::make<T>(phase.axes, c.sources(), kBytes,
                         std::min(most_positions, std::max(share, kFewest)));
}
