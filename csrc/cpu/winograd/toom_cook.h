// Correlations along one axis with fewer products, by values at a few points.
//
// The taps g_k = sum_j s_j x_{j+k} that a tile of positions s adds are, with as many points p as
// there are inputs x (taps + positions - 1),
//   g_k = scale sum_p p^k (sum_j p^j s_j) w_p(x),
// one product a point instead of one for each tap and position. The point at infinity takes the
// last coefficient; w_p(x) are the coefficients of prod_{q != p} (z - q) applied to x, over their
// value at z = p. Eight points are 0, 1, -1, 2, -2, 1/2, -1/2 and infinity; six do without 1/2 and
// -1/2, five without -2 too, four without 2. All constants but `scale` = 1 / `divisor` are exact in
// binary, and a multiple of 3, 9 or 45 times the rounded inverse is rounded to the quotient, so
// that integers stay exact.

template <class T, int kTaps, int kTile>
struct PointTransform {
  using Vector = Reg<T>;
  static constexpr int points = kTaps + kTile - 1;
  static constexpr int pairs = points / 2 - 1;  // of points 1, 2 and 1/2, and their negatives
  static constexpr bool has_two = points == 5;  // without -2
  static_assert((points >= 4 && points <= 6) || points == 8);
  static constexpr int divisor = points == 4 ? 1 : points == 8 ? 45 : 3;

  // out_p = sum_j p^j in_j
  static void positions(const Vector* in, Vector* out) {
    out[0] = in[0];
    out[points - 1] = in[kTile - 1];
    for (int h = 0; h < pairs; ++h) {
      Vector even = in[0], odd = in[1] * power(h, 1);
      for (int j = 2; j < kTile; ++j) (j % 2 == 0 ? even : odd) += in[j] * power(h, j);
      out[1 + 2 * h] = even + odd;
      out[2 + 2 * h] = even - odd;
    }
    if constexpr (has_two) {
      out[3] = in[0];
      for (int j = 1; j < kTile; ++j) out[3] += in[j] * power(1, j);
    }
  }

  // out_p = w_p(in) / scale
  static void windows(const Vector* in, Vector* out) {
    if constexpr (points == 4) {
      out[0] = in[0] - in[2];
      out[1] = (in[1] + in[2]) * T(0.5);
      out[2] = (in[2] - in[1]) * T(0.5);
      out[3] = in[3] - in[1];
    } else if constexpr (points == 5) {
      const Vector odd = in[3] - in[1];
      out[0] = (in[0] - in[2]) * T(3) + odd * T(1.5);
      out[1] = (in[1] + in[2] - odd) * T(1.5);
      out[2] = (in[2] - in[1]) * T(1.5) - odd * T(0.5);
      out[3] = odd * T(0.5);
      out[4] = (in[4] - in[2]) * T(3) - odd * T(6);
    } else if constexpr (points == 8) {
      const Vector even1 = in[4] * T(42.5) - (in[2] + in[6]) * T(10);
      const Vector odd1 = in[3] * T(42.5) - (in[1] + in[5]) * T(10);
      const Vector even2 = in[6] * T(0.5) - in[4] * T(0.625) + in[2] * T(0.125);
      const Vector odd2 = in[5] - in[3] * T(1.25) + in[1] * T(0.25);
      const Vector even3 = in[2] * T(128) - in[4] * T(160) + in[6] * T(32);
      const Vector odd3 = in[1] * T(64) - in[3] * T(80) + in[5] * T(16);
      out[0] = (in[0] - in[6]) * T(45) + (in[4] - in[2]) * T(236.25);
      out[1] = even1 + odd1;
      out[2] = even1 - odd1;
      out[3] = even2 + odd2;
      out[4] = even2 - odd2;
      out[5] = even3 + odd3;
      out[6] = even3 - odd3;
      out[7] = (in[7] - in[1]) * T(45) + (in[3] - in[5]) * T(236.25);
    } else {
      const Vector even1 = in[2] * T(2) - in[4] * T(0.5), odd1 = in[1] * T(2) - in[3] * T(0.5);
      const Vector even2 = (in[4] - in[2]) * T(0.125), odd2 = (in[3] - in[1]) * T(0.25);
      out[0] = in[0] * T(3) - in[2] * T(3.75) + in[4] * T(0.75);
      out[1] = even1 + odd1;
      out[2] = even1 - odd1;
      out[3] = even2 + odd2;
      out[4] = even2 - odd2;
      out[5] = in[1] * T(12) - in[3] * T(15) + in[5] * T(3);
    }
  }

  // out_k = sum_p p^k in_p
  static void taps(const Vector* in, Vector* out) {
    for (int k = 0; k < kTaps; ++k) {
      out[k] = k % 2 == 0 ? in[1] + in[2] : in[1] - in[2];
      for (int h = 1; h < pairs; ++h)
        out[k] += (k % 2 == 0 ? in[1 + 2 * h] + in[2 + 2 * h] : in[1 + 2 * h] - in[2 + 2 * h]) *
                  power(h, k);
      if constexpr (has_two) out[k] += in[3] * power(1, k);
    }
    out[0] += in[0];
    out[kTaps - 1] += in[points - 1];
  }

 private:
  // The j-th power of pair h: of 1, 2 or 1/2.
  static constexpr T power(int h, int j) {
    return h == 0 ? T(1) : h == 1 ? T(1 << j) : T(1) / T(1 << j);
  }
};

// Values [other][tap][inner], where the inner side is the rows or the channels.
inline Layout tap_planes(bool rows_inside, int taps, int64_t pitch) {
  const int64_t other = taps * taps * pitch;
  return {rows_inside ? 1 : other, rows_inside ? other : 1, pitch, taps * pitch};
}

// The taps of a kernel in two dimensions from products at points^2 planes, `step` apart:
// sink(at, pitch, g) of kTaps taps at a time, tap k of them at entry at + k * pitch.
template <class T, int kTaps, int kTile, class Sink>
[[gnu::always_inline]] inline void recover_taps(const T* products, int64_t step, int64_t at,
                                                int64_t pitch, Sink& sink) {
  using Points = PointTransform<T, kTaps, kTile>;
  constexpr int P = Points::points;
  Reg<T> half[kTaps][P];
  for (int x = 0; x < P; ++x) {
    Reg<T> in[P], out[kTaps];
    for (int y = 0; y < P; ++y) in[y] = load_once(products + (y * P + x) * step);
    Points::taps(in, out);
    for (int y = 0; y < kTaps; ++y) half[y][x] = out[y];
  }
  for (int y = 0; y < kTaps; ++y) {
    Reg<T> out[kTaps];
    Points::taps(half[y], out);
    for (int x = 0; x < kTaps; ++x) out[x] *= T(1) / T(Points::divisor * Points::divisor);
    sink(at + y * kTaps * pitch, pitch, out);
  }
}

// recover_taps of products of several others, `row` apart, and of lanes, to entries
// [other][tap][lane]. Inlined, as a `step` that is a constant saves registers.
template <class T, int kTaps, int kTile, class Sink>
[[gnu::always_inline]] inline void recover_rows(const T* products, int64_t step, int64_t row,
                                                int64_t others, int64_t lanes, int64_t at,
                                                int64_t pitch, Sink& sink) {
  // A copy's members stay in registers; those of `sink` would be read again after every store.
  Sink own = sink;
  for (int64_t i = 0; i < others; ++i, products += row, at += kTaps * kTaps * pitch)
    for (int64_t c = 0; c < lanes; c += kWidth<T>) {
      const T* from = products + c;
      // Hides that a plane's next lanes are another plane's: GCC would keep them all for later.
      asm("" : "+r"(from));
      recover_taps<T, kTaps, kTile>(from, step, at + c, pitch, own);
    }
  sink = own;
}
