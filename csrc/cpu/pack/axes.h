// Axes of padded images, in which every tap of a kernel is one flat offset. This folder has the
// copies that kernels read instead of tensors: padded images (padded.h) and transposed lines
// (transpose.h); not what is multiplied.
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
