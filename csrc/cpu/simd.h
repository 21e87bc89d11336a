// Vectors of the instruction set in force, as compiler vector extensions.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.

constexpr int kVectorBytes = LAPKERNELS_VECTOR_BYTES;
// Accumulators a tile may hold: vector registers less those for operands.
constexpr bool kManyRegisters = LAPKERNELS_VECTOR_REGISTERS >= 32;

template <class T> struct Simd;
template <> struct Simd<float> {
  static constexpr int width = kVectorBytes / 4;
  typedef float Vec __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
  typedef float Reg __attribute__((vector_size(kVectorBytes)));
};
template <> struct Simd<double> {
  static constexpr int width = kVectorBytes / 8;
  typedef double Vec __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
  typedef double Reg __attribute__((vector_size(kVectorBytes)));
};
template <class T> using Reg = typename Simd<T>::Reg;
template <class T> constexpr int kWidth = Simd<T>::width;

template <class T> inline Reg<T> load(const T* p) {
  return *reinterpret_cast<const typename Simd<T>::Vec*>(p);
}
template <class T> inline void store(T* p, Reg<T> v) {
  *reinterpret_cast<typename Simd<T>::Vec*>(p) = v;
}
template <class T> inline Reg<T> broadcast(T x) { return x - Reg<T>{}; }

// Sum of a vector's lanes, in one fixed order.
template <class T> inline T sum(Reg<T> v) {
  T lanes[kWidth<T>];
  store<T>(lanes, v);
  for (int half = kWidth<T> / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Zeroed scratch memory on a vector boundary. The slack lets a vector load run past the end.
template <class T> class Scratch {
 public:
  explicit Scratch(int64_t count)
      : storage_(static_cast<size_t>(count + 2 * kSlack), T(0)),
        data_(storage_.data()) {
    const auto address = reinterpret_cast<uintptr_t>(data_);
    data_ += (64 - address % 64) % 64 / sizeof(T);
  }
  T* data() { return data_; }

 private:
  static constexpr int64_t kSlack = 4 * 64 / sizeof(T);
  std::vector<T> storage_;
  T* data_;
};
