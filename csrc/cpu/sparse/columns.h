// Columns that share their zeros: compressed rows of the entries that are not zero, and products
// with them.
//
// The large image is laid out as [z, y, x, channel] with zeros around it, so that the patch a
// position reads is a few contiguous runs. A patch is cut into vectors, no vector crosses a run,
// and a few of them times a few columns make a tile.

// Where the patch of a position lies in the padded image, and its weights in a row of the weight.
template <class T>
struct Patch {
  struct Vector {
    int64_t offset, lanes;  // from the patch's first entry; in use
  };
  int64_t channels;
  int64_t lengths[3];              // of the padded image
  std::vector<int64_t> positions;  // first entry of the patch of each position
  std::vector<Vector> vectors;
  std::vector<int64_t> weight_offsets;  // of each lane of each vector, 0 where it is not in use

  template <class W>
  Patch(const Taps& taps, const int64_t output[3], const int64_t input[3], const Grid<W>& weight)
      : channels(weight.size[2]) {
    for (int d = 0; d < 3; ++d)
      lengths[d] =
          std::max((output[d] - 1) * taps.stride[d] + (taps.kernel[d] - 1) * taps.dilation[d] + 1,
                   taps.padding[d] + input[d]);
    for (int64_t z = 0; z < output[0]; ++z)
      for (int64_t y = 0; y < output[1]; ++y)
        for (int64_t x = 0; x < output[2]; ++x)
          positions.push_back(entry(z * taps.stride[0], y * taps.stride[1], x * taps.stride[2]));
    const int64_t joined = taps.dilation[2] == 1 ? taps.kernel[2] : 1, run = joined * channels;
    for (int64_t z = 0; z < taps.kernel[0]; ++z)
      for (int64_t y = 0; y < taps.kernel[1]; ++y)
        for (int64_t x = 0; x < taps.kernel[2]; x += joined)
          for (int64_t i = 0; i < run; i += kWidth<T>) {
            const int64_t lanes = std::min<int64_t>(kWidth<T>, run - i);
            vectors.push_back(
                {entry(z * taps.dilation[0], y * taps.dilation[1], x * taps.dilation[2]) + i,
                 lanes});
            for (int64_t at = i; at < i + lanes; ++at)
              weight_offsets.push_back(at % channels * weight.stride[2] + z * weight.stride[3] +
                                       y * weight.stride[4] +
                                       (x + at / channels) * weight.stride[5]);
            weight_offsets.resize(vectors.size() * kWidth<T>);
          }
  }

  int64_t entry(int64_t z, int64_t y, int64_t x) const {
    return ((z * lengths[1] + y) * lengths[2] + x) * channels;
  }
  int64_t size() const { return entry(lengths[0], 0, 0); }
  int64_t count() const { return vectors.size(); }
};

// Entries where some of a few columns is not zero, row by row: row r has [begin[r], begin[r + 1]).
template <class T>
struct SparseRows {
  int64_t columns = 0;
  std::vector<int64_t> begin, index;
  std::vector<T> values;  // [entry][column]

  int64_t rows() const { return static_cast<int64_t>(begin.size()) - 1; }

  // The rows become indices, and these rows, of which there are `count`.
  SparseRows transposed(int64_t count) const {
    SparseRows to{columns, std::vector<int64_t>(count + 2), {}, {}};
    for (int64_t e = 0; e < begin.back(); ++e) ++to.begin[index[e] + 2];
    std::partial_sum(to.begin.begin(), to.begin.end(), to.begin.begin());
    to.index.resize(begin.back());
    to.values.resize(begin.back() * columns);
    // begin[t + 1] runs from the first entry of row t to the first of row t + 1.
    for (int64_t r = 0; r < rows(); ++r)
      for (int64_t e = begin[r]; e < begin[r + 1]; ++e) {
        const int64_t at = to.begin[index[e] + 1]++;
        to.index[at] = r;
        for (int64_t v = 0; v < columns; ++v) to.values[at * columns + v] = values[e * columns + v];
      }
    to.begin.pop_back();
    return to;
  }
};

// Reads SparseRows: a row for each channel, with positions as indices.
template <class T>
class SparseReader {
 public:
  SparseReader(const Grid<const T>& s, int64_t most_columns)
      : s_(s),
        positions_(s.size[3] * s.size[4] * s.size[5]),
        flat_(s.stride[5] == 1 && s.stride[4] == s.size[5] &&
              (s.size[3] == 1 || s.stride[3] == s.size[4] * s.size[5])),
        copies_(flat_ ? 0 : most_columns * positions_),
        lines_(most_columns),
        any_(positions_) {}

  // Columns [first, first + columns) and channels [from, to) of sample n.
  void read(SparseRows<T>& rows, int64_t n, int64_t first, int64_t columns, int64_t from,
            int64_t to) {
    rows.columns = columns;
    rows.begin.assign(1, 0);
    rows.index.resize((to - from) * positions_);
    for (int64_t o = from; o < to; ++o) {
      fill(n, first, columns, o);
      int64_t found = rows.begin.back();
      for (int64_t t = 0; t < positions_; ++t) {
        rows.index[found] = t;
        found += any_[t];
      }
      rows.values.resize(found * columns);
      for (int64_t e = rows.begin.back(); e < found; ++e)
        for (int64_t v = 0; v < columns; ++v)
          rows.values[e * columns + v] = lines_[v][rows.index[e]];
      rows.begin.push_back(found);
    }
  }

 private:
  using Flag = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

  // Finds a channel's columns, and marks the positions at which one of them is not zero.
  void fill(int64_t n, int64_t first, int64_t columns, int64_t channel) {
    Flag* any = any_.data();
    std::fill_n(any, positions_, Flag(0));
    for (int64_t v = 0; v < columns; ++v) {
      const T* from = s_.channel(first + v, n, channel);
      lines_[v] = flat_ ? from : copies_.data() + v * positions_;
      for (int64_t row = 0; !flat_ && row < s_.size[3] * s_.size[4]; ++row)
        copy_row(copies_.data() + v * positions_ + row * s_.size[5],
                 from + row / s_.size[4] * s_.stride[3] + row % s_.size[4] * s_.stride[4],
                 s_.size[5], s_.stride[5], Identity{});
      const T* line = lines_[v];
      for (int64_t t = 0; t < positions_; ++t) any[t] |= line[t] != T(0);
    }
  }

  Grid<const T> s_;
  int64_t positions_;
  bool flat_;
  Scratch<T> copies_;
  std::vector<const T*> lines_;  // of each column
  std::vector<Flag> any_;
};

// acc[r][c] = sum_e values[e * R + r] * from[c][index[e] ...], R columns times C vectors.
template <class T, int R, int C>
inline void sparse_sum(Reg<T> (&acc)[R][C], const int64_t* index, const T* values, int64_t entries,
                       const T* const (&from)[C]) {
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r][c] = Reg<T>{};
  for (int64_t e = 0; e < entries; ++e, values += R) {
    Reg<T> column[R];
    for (int r = 0; r < R; ++r) column[r] = broadcast(values[r]);
    for (int c = 0; c < C; ++c) {
      const Reg<T> vector = load(from[c] + index[e]);
      for (int r = 0; r < R; ++r) acc[r][c] += column[r] * vector;
    }
  }
}
