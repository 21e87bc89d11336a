// A[g] = sum_{n, t} x x^T over the patches of group g, or of patches summed over t (reduce).
//
// Patches are packed straight from padded images in which every tap is an offset (pack/padded.h), a
// row block of a sample at a time; the unfolded input never exists. A transposed convolution is a
// plain one with flipped taps over an input spread out by its stride: a phase of the output reads
// the taps that fall on it, and zeros elsewhere.

// Packs patches into panels, for one call of second_moment.
template <class T>
class Patches {
 public:
  Patches(const Grid<const T>& x, const int64_t output_size[3], const Taps& taps, bool transposed,
          bool reduce, bool bias)
      : x_(x),
        channels_(x.size[2] / taps.groups),
        kernel_(taps.kernel[0] * taps.kernel[1] * taps.kernel[2]),
        positions_(output_size[0] * output_size[1] * output_size[2]),
        reduce_(reduce),
        bias_(bias) {
    if (positions_ == 0) return;
    int64_t phases[3];
    for (int d = 0; d < 3; ++d)
      phases[d] = transposed ? std::min(taps.stride[d], output_size[d]) : 1;
    for (int64_t i = 0; i < phases[0] * phases[1] * phases[2]; ++i) {
      const int64_t at[3] = {i / phases[2] / phases[1], i / phases[2] % phases[1], i % phases[2]};
      auto axis = [&](int d) {
        return transposed ? scatter_axis(taps, d, at[d], output_size[d], x.size[3 + d])
                          : gather_axis(taps, d, output_size[d], x.size[3 + d]);
      };
      Planes planes = Planes::make<T>({axis(0), axis(1), axis(2)}, kChannels, tuning::kImageBytes,
                                      tuning::kPanelPositions);
      phases_.push_back({planes, planes.tap_offsets(taps.kernel)});
    }
    for (int64_t n = 0; n < x.size[1]; ++n)
      for (size_t i = 0; i < (reduce ? 1 : phases_.size()); ++i)
        for (int64_t row_block = 0; row_block < (reduce ? 1 : phases_[i].planes.row_blocks());
             ++row_block) {
          pieces_.push_back({n, int64_t(i), row_block});
          counts_.push_back(reduce ? 1 : phases_[i].planes.positions(row_block));
        }
  }

  int64_t features() const { return channels_ * kernel_ + bias_; }
  // Vectors of each piece, and shares of the features.
  const std::vector<int64_t>& counts() const { return counts_; }
  int64_t tasks() const { return std::max<int64_t>(1, ceil_div(channels_, kChannels)); }

  // Writes a share of the features of group g.
  void pack(const Panels<T>& panels, int64_t g, int64_t piece, int64_t first, int64_t task) const {
    const Channels some{g, task * kChannels, std::min(channels_, (task + 1) * kChannels)};
    const auto [n, phase, row_block] = pieces_[piece];
    if (bias_ && task == tasks() - 1)
      for (int64_t k = 0; k < counts_[piece]; ++k)
        *panels.column(features() - 1, first + k) = reduce_ ? T(positions_) : T(1);
    if (!reduce_) return copy(panels, phases_[phase], some, n, row_block, first);
    for (int64_t j = some.begin * kernel_; j < some.end * kernel_; ++j)
      *panels.column(j, first) = T(0);
    for (const Phase& one : phases_)
      for (int64_t i = 0; i < one.planes.row_blocks(); ++i)
        add_sums(panels, one, some, n, i, first);
  }

 private:
  static constexpr int64_t kChannels = 8;  // of a share

  // Positions that read the same taps: all of a convolution, a phase of a transposed one.
  struct Phase {
    Planes planes;
    std::vector<std::pair<int64_t, int64_t>> taps;  // offsets with indices
  };
  // A row block of a sample and a phase; a whole sample when reducing.
  struct Piece {
    int64_t n, phase, row_block;
  };
  struct Channels {
    int64_t group, begin, end;
  };

  Scratch<T> images(const Planes& p, const Channels& some, int64_t n, int64_t row_block) const {
    Scratch<T> filled((some.end - some.begin) * p.phases * p.plane + p.flat);
    const int64_t c = some.group * channels_;
    fill_planes<T>(filled.data(), p, row_block, x_, 0, n, c + some.begin, c + some.end, Identity{});
    return filled;
  }

  // f(entry, k, count): lines of positions, the first of which is number k.
  template <class F>
  static void each_line(const Planes& p, int64_t row_block, F f) {
    int64_t k = 0;
    const int64_t nx = p.count(2, row_block);
    for (int64_t z = 0; z < p.count(0, row_block); ++z)
      for (int64_t y = 0; y < p.count(1, row_block); ++y, k += nx) f(p.row(z, y), k, nx);
  }

  void copy(const Panels<T>& panels, const Phase& phase, const Channels& some, int64_t n,
            int64_t row_block, int64_t first) const {
    const Planes& p = phase.planes;
    const Scratch<T> images = this->images(p, some, n, row_block);
    // Offsets of all features of these channels; none for a tap of another phase.
    std::vector<int64_t> offsets((some.end - some.begin) * kernel_, -1);
    for (int64_t c = 0; c < some.end - some.begin; ++c)
      for (const auto& [offset, index] : phase.taps)
        offsets[c * kernel_ + index] = c * p.phases * p.plane + offset;
    const bool whole = int64_t(phase.taps.size()) == kernel_;
    each_line(p, row_block, [&](int64_t entry, int64_t k, int64_t nx) {
      const int64_t end = some.end * kernel_;
      for (int64_t j = some.begin * kernel_, run; j < end; j += run) {
        T* to = panels.column(j, first + k);
        run = std::min(end - j, kPanel<T> - j % kPanel<T>);
        const int64_t* of = offsets.data() + j - some.begin * kernel_;
        if (whole)
          gather_lines(to, kPanel<T>, images.data() + entry, of, run, nx);
        else
          for (int64_t t = 0; t < nx; ++t)
            for (int64_t i = 0; i < run; ++i)
              to[t * kPanel<T> + i] = of[i] < 0 ? T(0) : images.data()[entry + t + of[i]];
      }
    });
  }

  void add_sums(const Panels<T>& panels, const Phase& phase, const Channels& some, int64_t n,
                int64_t row_block, int64_t first) const {
    const Planes& p = phase.planes;
    const Scratch<T> images = this->images(p, some, n, row_block);
    for (int64_t c = some.begin; c < some.end; ++c)
      for (const auto& [offset, tap] : phase.taps) {
        const T* from = images.data() + (c - some.begin) * p.phases * p.plane + offset;
        T total = 0;
        each_line(p, row_block, [&](int64_t entry, int64_t, int64_t nx) {
          for (int64_t t = 0; t < nx; ++t) total += from[entry + t];
        });
        *panels.column(c * kernel_ + tap, first) += total;
      }
  }

  const Grid<const T>& x_;
  int64_t channels_, kernel_, positions_;
  bool reduce_, bias_;
  std::vector<Phase> phases_;
  std::vector<Piece> pieces_;
  std::vector<int64_t> counts_;
};

template <class T>
void kronecker_input(const Context& context, Grid<T> out, Update update, Grid<const T> x,
                     const int64_t output_size[3], Taps taps, bool transposed, bool reduce,
                     bool bias) {
  const int64_t channels = x.size[2] / taps.groups;
  const bool empty = output_size[0] * output_size[1] * output_size[2] == 0;
  bool pointwise = !empty;
  for (int d = 0; d < 3; ++d)
    pointwise &= taps.kernel[d] == 1 && taps.stride[d] == 1 && taps.padding[d] == 0 &&
                 output_size[d] == x.size[3 + d];
  // A patch is one position of the input itself.
  if (pointwise) return channel_moments<T>(context, out, update, x, taps.groups, reduce, bias);
  if (!transposed && !reduce && !bias && !empty && LagMoment<T>::applies(taps, channels)) {
    for (int64_t g = 0; g < taps.groups; ++g)
      LagMoment<T>(context, x, g * channels, channels, output_size, taps)
          .write(out.data + g * out.stride[3], out.stride[4], out.stride[5], update);
    return;
  }
  const Patches<T> patches(x, output_size, taps, transposed, reduce, bias);
  for (int64_t g = 0; g < taps.groups; ++g)
    second_moment<T>(context, out.data + g * out.stride[3], out.stride[4], out.stride[5], update,
                     patches.features(), patches.counts(), patches.tasks(),
                     [&](const Panels<T>& panels, int64_t piece, int64_t first, int64_t task) {
                       patches.pack(panels, g, piece, first, task);
                     });
}
