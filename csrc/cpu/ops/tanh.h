// tanh of contiguous memory, parallel over fixed stretches.

// Near zero an odd polynomial, elsewhere 1 - 2 / (exp(2|x|) + 1); both are computed, so that plain
// loops vectorise. Error 2 ulp.
inline float tanh_of(float x) {
  const float a = std::abs(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = p * z * a + a, far = 1 - 2 / (fast_exp(2 * a) + 1);
  return x == x ? std::copysign(a < 0.625f ? near : far, x) : x;
}
inline double tanh_of(double x) { return std::tanh(x); }

template <class T>
void tanh(const Context& context, T* out, const T* x, int64_t size) {
  constexpr int64_t kStretch = 1 << 12;
  context.parallel_for(ceil_div(size, kStretch), [&](int64_t task) {
    const int64_t begin = task * kStretch, end = std::min(size, begin + kStretch);
    for (int64_t i = begin; i < end; ++i) out[i] = tanh_of(x[i]);
  });
}
