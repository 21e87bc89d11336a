// Derivatives of elementwise activations, and rows of results that they are multiplied with.

// exp by halving the argument's range to |r| <= ln 2 / 2 and a Taylor polynomial, error a few ulp.
// Plain loops over it vectorise.
inline float fast_exp(float x) {
  x = std::min(std::max(x, -87.0f), 88.0f);
  const float shifted = x * 1.44269504088896341f + 12582912.0f;  // rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float y = 1.0f / 5040;
  y = y * r + 1.0f / 720;
  y = y * r + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  return y * std::bit_cast<float>(bits);
}
inline double fast_exp(double x) { return std::exp(x); }

// phi'(z), or, where an activation's result y is known better than z, from y.
template <class T, Activation kind>
inline T derivative(T z, T slope) {
  if constexpr (kind == Activation::given) return z;
  if constexpr (kind == Activation::relu) return z > 0 ? T(1) : T(0);
  if constexpr (kind == Activation::leaky_relu) return z > 0 ? T(1) : slope;
  if constexpr (kind == Activation::elu) {
    const T d = slope * fast_exp(std::min(z, T(0)));
    return z > 0 ? T(1) : d;
  }
  if constexpr (kind == Activation::tanh) {
    // 1 - tanh² = 4 e / (1 + e)², e = exp(-2|z|): no cancellation.
    const T e = fast_exp(T(-2) * std::abs(z));
    return 4 * e / ((1 + e) * (1 + e));
  }
  if constexpr (kind == Activation::sigmoid) {
    const T e = fast_exp(-std::abs(z));
    return e / ((1 + e) * (1 + e));
  }
  if constexpr (kind == Activation::softplus) return 1 / (1 + fast_exp(-slope * z));
  if constexpr (kind == Activation::silu) {
    const T s = 1 / (1 + fast_exp(-z));
    return s * (1 + z * (1 - s));
  }
  if constexpr (kind == Activation::gelu) {
    const T cdf = T(0.5) * (1 + std::erf(z * T(0.70710678118654752440)));
    return cdf + z * T(0.39894228040143267794) * std::exp(T(-0.5) * z * z);
  }
  if constexpr (kind == Activation::tanh_of_result) return 1 - z * z;
  if constexpr (kind == Activation::sigmoid_of_result) return z * (1 - z);
  return T(1);
}

// slopes[i] = phi'(z[i])
template <class T, Activation kind>
void fill_slopes(T* __restrict slopes, const T* __restrict z, int64_t count, T slope) {
  for (int64_t i = 0; i < count; ++i) slopes[i] = derivative<T, kind>(z[i], slope);
}
template <class T>
using FillSlopes = decltype(&fill_slopes<T, Activation::identity>);

// That of an activation known at run time; none for the identity.
template <class T>
FillSlopes<T> slopes_of(Activation kind) {
  constexpr int kKinds = static_cast<int>(Activation::sigmoid_of_result) + 1;
  static constexpr auto fills = []<int... k>(std::integer_sequence<int, k...>) {
    return std::array{&fill_slopes<T, static_cast<Activation>(k)>...};
  }(std::make_integer_sequence<int, kKinds>{});
  return kind == Activation::identity ? nullptr : fills[static_cast<int>(kind)];
}

// phi'(z) or phi'(z)² of a row of values z, a few at a time.
template <class T>
struct Slopes {
  static constexpr int64_t kFew = 64;

  FillSlopes<T> fill = nullptr;
  T parameter = 0;
  bool squared = false;

  Slopes() = default;
  Slopes(Activation kind, double slope, bool squared_)
      : fill(slopes_of<T>(kind)), parameter(slope), squared(squared_) {}

  void take(T* slopes, const T* z, int64_t stride, int64_t count) const {
    T copy[kFew];
    if (stride != 1) {
      copy_row(copy, z, count, stride, Identity{});
      z = copy;
    }
    fill(slopes, z, count, parameter);
    if (squared)
      for (int64_t i = 0; i < count; ++i) slopes[i] *= slopes[i];
  }
};

// out <- decay * out + scale * value * phi'(z) along a row, or with phi'(z)².
template <class T>
void write_row(T* out, int64_t stride, Update update, const T* value, const Slopes<T>& slopes,
               const T* z, int64_t z_stride, int64_t count) {
  const T decay = update.decay, scale = update.scale;
  T slope[Slopes<T>::kFew];
  auto put = [&](T* to, auto step, const T* from, int64_t few, auto has_slopes, auto keeps) {
    for (int64_t x = 0; x < few; ++x) {
      T result = scale * from[x];
      if constexpr (has_slopes) result *= slope[x];
      if constexpr (keeps) result += decay * to[x * step];
      to[x * step] = result;
    }
  };
  auto part = [&](int64_t first, int64_t few, auto has_slopes) {
    T* to = out + first * stride;
    const T* from = value + first;
    auto along = [&](auto step) {
      decay == 0 ? put(to, step, from, few, has_slopes, std::false_type{})
                 : put(to, step, from, few, has_slopes, std::true_type{});
    };
    stride == 1 ? along(std::integral_constant<int64_t, 1>{}) : along(stride);
  };
  if (!slopes.fill) return part(0, count, std::false_type{});
  for (int64_t x = 0, few; x < count; x += few) {
    few = std::min(Slopes<T>::kFew, count - x);
    slopes.take(slope, z + x * z_stride, z_stride, few);
    part(x, few, std::true_type{});
  }
}
