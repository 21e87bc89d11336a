// Direct products with positions in the lanes of vectors: dots of rows, laid out like the images,
// with shifted images. For few rows, or few channels and many positions.

template <class T>
class PositionsInLanes {
 public:
  static Planes planes(const Correlation<T>& p, int64_t channels) {
    return Planes::make<T>(p.axes, channels, tuning::kImageBytes);
  }

  static Layout layout(const Correlation<T>& p, int64_t, int64_t channels) {
    return {round_up(channels * p.kernel, kWidth<T>), p.kernel, 1};
  }

  // Instructions beside those that fill the images.
  static double cost(const Correlation<T>& p, const Planes& planes, int64_t rows,
                     int64_t channels) {
    const double flat = planes.row_blocks() * planes.flat, columns = channels * p.kernel;
    return rows * (tuning::kShifted * columns * (flat / kWidth<T> + 4) + tuning::kCopied * flat);
  }

  static int64_t together(const Correlation<T>&, const Planes&) { return 1; }

  PositionsInLanes(const Correlation<T>& p, const Planes& planes, int64_t rows, int64_t channels)
      : planes_(planes),
        kernel_(p.kernel),
        pitch_(layout(p, rows, channels).row),
        rows_(rows * planes.flat),
        offsets_(channels * p.kernel) {
    for (const auto& [offset, index] : planes.tap_offsets(p.taps.kernel))
      for (int64_t b = 0; b < channels; ++b)
        offsets_[b * kernel_ + index] = b * planes.phases * planes.plane + offset;
  }

  // Rows [a, a + rows) of a sample, with a function applied.
  template <class F>
  void take(const Grid<const T>& s, int64_t v, const Samples& samples, int64_t a, int64_t rows,
            int64_t row_block, F f) {
    fill_positions<T>(rows_.data(), planes_.flat, planes_, row_block, s, v, samples.first, a,
                      a + rows, f);
  }

  // values (+)= rows times windows of the images.
  void multiply(const T* images, int64_t, int64_t, int64_t rows, int64_t channels,
                int64_t row_block, T* values, bool accumulate) {
    dot_block<T>(rows_.data(), planes_.flat, rows, images, offsets_.data(), channels * kernel_,
                 planes_.extent<T>(row_block), values, pitch_, accumulate);
  }

 private:
  const Planes& planes_;
  int64_t kernel_, pitch_;
  Scratch<T> rows_;
  std::vector<int64_t> offsets_;
};
