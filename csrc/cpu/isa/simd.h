// Vectors of the instruction set in force, as compiler vector extensions, and scratch memory for
// them. Nothing here knows what is computed.

constexpr int kVectorBytes = LAPKERNELS_VECTOR_BYTES;

// A vector as it lies in memory and in a register, and one of 16 bytes.
template <class T>
struct Simd {
  typedef T Vec __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));
  typedef T Reg __attribute__((vector_size(kVectorBytes)));
  typedef T Part __attribute__((vector_size(16)));
};

// A vector, and its lanes.
template <class T>
using Reg = typename Simd<T>::Reg;
template <class T>
constexpr int kWidth = kVectorBytes / sizeof(T);

// Lanes p[0], p[1], ...
template <class T>
inline Reg<T> load(const T* p) {
  return *reinterpret_cast<const typename Simd<T>::Vec*>(p);
}

// The same for a value of several uses, which GCC may otherwise read from memory for each of them.
template <class T>
inline Reg<T> load_once(const T* p) {
  Reg<T> value = load(p);
#if defined(__x86_64__)
  asm("" : "+v"(value));
#endif
  return value;
}

// p[i] = lane i.
template <class T>
inline void store(T* p, Reg<T> v) {
  *reinterpret_cast<typename Simd<T>::Vec*>(p) = v;
}

// x in all lanes.
template <class T>
inline Reg<T> broadcast(T x) {
  return x - Reg<T>{};
}

// Entries of a vector's parts of 16 bytes.
template <class T>
constexpr int kPart = 16 / sizeof(T);

// Entries `first` of each part of two vectors: those of the second follow on those of the first.
template <class T, int... first, class V>
inline V pick(V a, V b) {
  constexpr int width = sizeof(V) / sizeof(T);
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    constexpr int n = kPart<T>, from[] = {first...};
    return __builtin_shufflevector(a, b,
                                   (i / n * n + from[i % n] % n + from[i % n] / n * width)...);
  }(std::make_integer_sequence<int, width>{});
}

// Sums of each part of kPart vectors: entry i of a part is the sum of that part of vector i.
template <class T>
inline Reg<T> sum_parts(const Reg<T>* v) {
  if constexpr (kPart<T> == 2)
    return pick<T, 0, 2>(v[0], v[1]) + pick<T, 1, 3>(v[0], v[1]);
  else {
    const Reg<T> a = pick<T, 0, 4, 1, 5>(v[0], v[1]) + pick<T, 2, 6, 3, 7>(v[0], v[1]);
    const Reg<T> b = pick<T, 0, 4, 1, 5>(v[2], v[3]) + pick<T, 2, 6, 3, 7>(v[2], v[3]);
    return pick<T, 0, 1, 4, 5>(a, b) + pick<T, 2, 3, 6, 7>(a, b);
  }
}

// Two vectors as one of twice the length.
template <class V>
inline auto join(V a, V b) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, i...);
  }(std::make_integer_sequence<int, 2 * sizeof(V) / sizeof(a[0])>{});
}

// Lanes [0, half) to `low` and the others to `high`.
template <class T>
inline void store_halves(T* low, T* high, Reg<T> v) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    constexpr int half = kWidth<T> / 2;
    const auto a = __builtin_shufflevector(v, v, i...);
    const auto b = __builtin_shufflevector(v, v, (half + i)...);
    __builtin_memcpy(low, &a, sizeof(a));
    __builtin_memcpy(high, &b, sizeof(b));
  }(std::make_integer_sequence<int, kWidth<T> / 2>{});
}

// Entries x < kPart of as many lines as fill kBytes, put(x, their entries x): line(j) is an
// address.
template <int kBytes, class T, class Line, class Put>
inline void transpose(Line line, Put put) {
  constexpr int n = kPart<T>;
  auto part = [&](int j) {
    typename Simd<T>::Part entries;
    __builtin_memcpy(&entries, line(j), sizeof(entries));
    return entries;
  };
  // Part i of vector j is line n * i + j.
  auto vector = [&](int j) {
    if constexpr (kBytes == 16)
      return part(j);
    else if constexpr (kBytes == 32)
      return join(part(j), part(n + j));
    else
      return join(join(part(j), part(n + j)), join(part(2 * n + j), part(3 * n + j)));
  };
  if constexpr (n == 2) {
    const auto a = vector(0), b = vector(1);
    put(0, pick<T, 0, 2>(a, b));
    put(1, pick<T, 1, 3>(a, b));
  } else {
    const auto v0 = vector(0), v1 = vector(1), v2 = vector(2), v3 = vector(3);
    const auto a = pick<T, 0, 4, 1, 5>(v0, v1), b = pick<T, 0, 4, 1, 5>(v2, v3);
    const auto c = pick<T, 2, 6, 3, 7>(v0, v1), d = pick<T, 2, 6, 3, 7>(v2, v3);
    put(0, pick<T, 0, 1, 4, 5>(a, b));
    put(1, pick<T, 2, 3, 6, 7>(a, b));
    put(2, pick<T, 0, 1, 4, 5>(c, d));
    put(3, pick<T, 2, 3, 6, 7>(c, d));
  }
}

// The sum of a vector's parts, in one fixed order.
template <class T>
inline typename Simd<T>::Part fold(Reg<T> v) {
  typename Simd<T>::Part parts[kVectorBytes / 16];
  __builtin_memcpy(parts, &v, sizeof(v));
  if constexpr (kVectorBytes == 64) return (parts[0] + parts[2]) + (parts[1] + parts[3]);
  if constexpr (kVectorBytes == 32) return parts[0] + parts[1];
  return parts[0];
}

// out[c] = the sum of the lanes of v[c], several vectors at a time.
template <int C, class T>
inline void sum_each(const Reg<T>* v, T* out) {
  constexpr int n = kPart<T>;
  for (int c = 0; c < C; c += n) {
    Reg<T> some[n] = {};
    for (int i = 0; i < n && c + i < C; ++i) some[i] = v[c + i];
    const auto sums = fold<T>(sum_parts<T>(some));
    __builtin_memcpy(out + c, &sums, sizeof(T) * std::min(n, C - c));
  }
}

// Lanes kFirst, kFirst + 2, ... of two vectors that follow each other.
template <class T, int kFirst>
inline Reg<T> every_other(Reg<T> low, Reg<T> high) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(low, high, (2 * i + kFirst)...);
  }(std::make_integer_sequence<int, kWidth<T>>{});
}

// The sum of all lanes.
template <class T>
inline T sum(Reg<T> v) {
  T total;
  sum_each<1>(&v, &total);
  return total;
}

// a / b and value / unit * unit, rounded up.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Scratch memory on a vector boundary, zeroed but for the first entries, `overwritten` before they
// are read. The slack lets a vector load run past the end.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count, int64_t overwritten = 0)
      : storage_(new T[count + 2 * kSlack]), data_(storage_.get()) {
    const auto address = reinterpret_cast<uintptr_t>(data_);
    data_ += (64 - address % 64) % 64 / sizeof(T);
    std::fill(data_ + overwritten, storage_.get() + count + 2 * kSlack, T(0));
  }
  T* data() { return data_; }
  const T* data() const { return data_; }

 private:
  static constexpr int64_t kSlack = 4 * 64 / sizeof(T);
  std::unique_ptr<T[]> storage_;
  T* data_;
};
