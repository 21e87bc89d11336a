// Columns that share their zeros: lists of the entries that are not zero, and sums over them.
//
// The large image is laid out as [z, y, x, channel] with zeros around it, so that the patch a
// position reads is a few contiguous runs. A patch is cut into vectors, no vector crosses a run,
// and a few of them times a few columns make a tile.

// Where the patch of a position lies in the padded image.
template <class T>
struct Patch {
  struct Vector {
    int64_t offset;  // from the patch's first entry
    int64_t tap;     // of its first lane
    int64_t channel;
    int64_t lanes;  // in use
  };
  int64_t channels;
  int64_t lengths[3];              // of the padded image
  std::vector<int64_t> positions;  // first entry of the patch of each position
  std::vector<Vector> vectors;

  Patch(const Taps& taps, const int64_t output[3], const int64_t input[3], int64_t channels_)
      : channels(channels_) {
    for (int d = 0; d < 3; ++d)
      lengths[d] =
          std::max((output[d] - 1) * taps.stride[d] + (taps.kernel[d] - 1) * taps.dilation[d] + 1,
                   taps.padding[d] + input[d]);
    for (int64_t z = 0; z < output[0]; ++z)
      for (int64_t y = 0; y < output[1]; ++y)
        for (int64_t x = 0; x < output[2]; ++x)
          positions.push_back(entry(z * taps.stride[0], y * taps.stride[1], x * taps.stride[2]));
    const int64_t joined = taps.dilation[2] == 1 ? taps.kernel[2] : 1;
    for (int64_t z = 0; z < taps.kernel[0]; ++z)
      for (int64_t y = 0; y < taps.kernel[1]; ++y)
        for (int64_t x = 0; x < taps.kernel[2]; x += joined)
          for (int64_t i = 0; i < joined * channels; i += kWidth<T>)
            vectors.push_back(
                {entry(z * taps.dilation[0], y * taps.dilation[1], x * taps.dilation[2]) + i,
                 (z * taps.kernel[1] + y) * taps.kernel[2] + x + i / channels, i % channels,
                 std::min<int64_t>(kWidth<T>, joined * channels - i)});
  }

  int64_t entry(int64_t z, int64_t y, int64_t x) const {
    return ((z * lengths[1] + y) * lengths[2] + x) * channels;
  }
  int64_t size() const { return entry(lengths[0], 0, 0); }
  int64_t count() const { return vectors.size(); }

  // Where each lane of each vector lies in a row [channel, kz, ky, kx] of the weight; 0 for lanes
  // that are not in use.
  template <class Weight>
  std::vector<int64_t> weight_offsets(const Taps& taps, const Weight& weight) const {
    std::vector<int64_t> offsets(count() * kWidth<T>, 0);
    int64_t* to = offsets.data();
    for (const Vector& vector : vectors) {
      for (int64_t lane = 0; lane < vector.lanes; ++lane) {
        const int64_t tap = vector.tap + (vector.channel + lane) / channels;
        const int64_t kx = tap % taps.kernel[2], row = tap / taps.kernel[2];
        to[lane] = (vector.channel + lane) % channels * weight.stride[2] +
                   row / taps.kernel[1] * weight.stride[3] +
                   row % taps.kernel[1] * weight.stride[4] + kx * weight.stride[5];
      }
      to += kWidth<T>;
    }
    return offsets;
  }
};

// The columns of a sample's channel, with positions that lie next to each other.
template <class T>
class Lines {
 public:
  Lines(const Grid<const T>& s, int64_t columns)
      : s_(s), count_(s.size[3] * s.size[4] * s.size[5]), copy_(0), lines_(columns), any_(count_) {
    int64_t step = 1;
    for (int d = 5; d >= 3; --d) {
      flat_ = flat_ && (s.size[d] == 1 || s.stride[d] == step);
      step *= s.size[d];
    }
    if (!flat_) copy_ = Scratch<T>(columns * count_);
  }

  void read(int64_t first, int64_t columns, int64_t n, int64_t channel) {
    columns_ = columns;
    for (int64_t v = 0; v < columns; ++v) {
      const T* from =
          s_.data + (first + v) * s_.stride[0] + n * s_.stride[1] + channel * s_.stride[2];
      lines_[v] = from;
      if (flat_) continue;
      T* to = copy_.data() + v * count_;
      lines_[v] = to;
      for (int64_t z = 0; z < s_.size[3]; ++z)
        for (int64_t y = 0; y < s_.size[4]; ++y, to += s_.size[5])
          copy_row(to, from + z * s_.stride[3] + y * s_.stride[4], s_.size[5], s_.stride[5],
                   Identity{});
    }
  }

  // The positions in [begin, end) where some column is not zero; `to` has room for all of them.
  int64_t find(int64_t begin, int64_t end, int64_t* to) {
    Flag* any = any_.data();
    const T* line = lines_[0];
    for (int64_t t = begin; t < end; ++t) any[t] = line[t] != T(0);
    for (int64_t v = 1; v < columns_; ++v) {
      line = lines_[v];
      for (int64_t t = begin; t < end; ++t) any[t] |= line[t] != T(0);
    }
    int64_t found = 0;
    for (int64_t t = begin; t < end; ++t) {
      to[found] = t;
      found += any[t];
    }
    return found;
  }

  int64_t count() const { return count_; }
  T at(int64_t v, int64_t t) const { return lines_[v][t]; }

 private:
  using Flag = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  Grid<const T> s_;
  int64_t count_, columns_ = 0;
  bool flat_ = true;
  Scratch<T> copy_;
  std::vector<const T*> lines_;
  std::vector<Flag> any_;
};

// acc[r][c] = sum_e values[e * R + r] * from[c][index[e] ...], R columns times C vectors.
template <class T, int R, int C>
inline void sparse_sum(Reg<T> (&acc)[R][C], const int64_t* index, const T* values, int64_t entries,
                       const T* const (&from)[C]) {
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r][c] = Reg<T>{};
  for (int64_t e = 0; e < entries; ++e, values += R) {
    const int64_t at = index[e];
    Reg<T> column[R];
    for (int r = 0; r < R; ++r) column[r] = broadcast(values[r]);
    for (int c = 0; c < C; ++c) {
      const Reg<T> vector = load(from[c] + at);
      for (int r = 0; r < R; ++r) acc[r][c] += column[r] * vector;
    }
  }
}

// Columns of a tile, and its vectors for so many columns: they fill the registers.
constexpr int kSparseColumns = 4;
constexpr int sparse_vectors(int64_t columns) {
  constexpr int many[] = {8, 8, 8, 6}, few[] = {8, 6, 4, 3};
  return kManyRegisters ? many[columns - 1] : few[columns - 1];
}

// make<R, C>() for R columns and C vectors.
template <class Make>
auto sparse_tile_for(int64_t columns, int64_t vectors, Make make) {
  const auto choose = [&]<int R, int... C>(std::integer_sequence<int, C...>) {
    decltype(make.template operator()<1, 1>()) found {};
    ((C + 1 == vectors ? void(found = make.template operator()<R, C + 1>()) : void()), ...);
    return found;
  };
  const auto of = [&]<int R>() {
    return choose.template operator()<R>(std::make_integer_sequence<int, sparse_vectors(R)>{});
  };
  if (columns == 1) return of.template operator()<1>();
  if (columns == 2) return of.template operator()<2>();
  if (columns == 3) return of.template operator()<3>();
  return of.template operator()<4>();
}
