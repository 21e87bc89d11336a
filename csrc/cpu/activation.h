// Derivatives of elementwise activations, and their squares.
// Included by isa_kernels.h inside namespace lapkernels::LAPKERNELS_ISA.

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
template <class T, Activation kind>
inline T squared_slope(T z, T slope) {
  const T d = derivative<T, kind>(z, slope);
  return d * d;
}

// Calls body.template operator()<kind>() for the activation known at run time.
template <class Body2>
void with_activation(Activation kind, Body2 body) {
  switch (kind) {
    case Activation::identity:
      return body.template operator()<Activation::identity>();
    case Activation::given:
      return body.template operator()<Activation::given>();
    case Activation::relu:
      return body.template operator()<Activation::relu>();
    case Activation::leaky_relu:
      return body.template operator()<Activation::leaky_relu>();
    case Activation::elu:
      return body.template operator()<Activation::elu>();
    case Activation::tanh:
      return body.template operator()<Activation::tanh>();
    case Activation::sigmoid:
      return body.template operator()<Activation::sigmoid>();
    case Activation::softplus:
      return body.template operator()<Activation::softplus>();
    case Activation::silu:
      return body.template operator()<Activation::silu>();
    case Activation::gelu:
      return body.template operator()<Activation::gelu>();
    case Activation::tanh_of_result:
      return body.template operator()<Activation::tanh_of_result>();
    case Activation::sigmoid_of_result:
      return body.template operator()<Activation::sigmoid_of_result>();
  }
}
