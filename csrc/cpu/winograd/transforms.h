// Winograd's F(m, r) along one axis: m taps of a weight gradient from a tile of r positions. This
// folder has weight gradients by it: an operand in both dimensions (operand.h), and the strategy
// (gradient.h), whose interface is that of weight_gradient/choose.h.
//
// The taps g_k = sum_j s_j x_{j+k}, k < m, that a tile of positions s_0 .. s_{r-1} adds are, with
// n = m + r - 1 evaluation nodes p (Toom-Cook),
//   g_k = scale sum_p p^k (sum_j p^j s_j) w_p(x),
// one product a node instead of one for each tap and position. The node at infinity takes the
// last coefficient; w_p(x) are the coefficients of prod_{q != p} (z - q) applied to x, over their
// value at z = p. Six nodes are 0, 1, -1, 2, -2 and infinity; four do without 2 and -2. All
// constants but `scale` = 1 / `divisor` are exact in binary, and a multiple of 3 or 9 times the
// rounded inverse is rounded to the quotient, so that integers stay exact.

template <class T, int m, int r>
struct Transforms {
  using Vector = Reg<T>;
  static constexpr int nodes = m + r - 1;
  static_assert(nodes == 4 || nodes == 6);
  static constexpr int pairs = nodes / 2 - 1;  // of nodes 1 and 2, and their negatives
  static constexpr int divisor = nodes == 4 ? 1 : 3;

  // out_p = sum_j p^j in_j
  static void positions(const Vector* in, Vector* out) {
    out[0] = in[0];
    out[nodes - 1] = in[r - 1];
    for (int h = 0; h < pairs; ++h) {
      Vector even = in[0], odd = in[1] * power(h, 1);
      for (int j = 2; j < r; ++j) (j % 2 == 0 ? even : odd) += in[j] * power(h, j);
      out[1 + 2 * h] = even + odd;
      out[2 + 2 * h] = even - odd;
    }
  }

  // out_p = w_p(in) / scale
  static void windows(const Vector* in, Vector* out) {
    if constexpr (nodes == 4) {
      out[0] = in[0] - in[2];
      out[1] = (in[1] + in[2]) * T(0.5);
      out[2] = (in[2] - in[1]) * T(0.5);
      out[3] = in[3] - in[1];
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
    for (int k = 0; k < m; ++k) {
      out[k] = k % 2 == 0 ? in[1] + in[2] : in[1] - in[2];
      for (int h = 1; h < pairs; ++h)
        out[k] += (k % 2 == 0 ? in[1 + 2 * h] + in[2 + 2 * h] : in[1 + 2 * h] - in[2 + 2 * h]) *
                  power(h, k);
    }
    out[0] += in[0];
    out[m - 1] += in[nodes - 1];
  }

 private:
  // The j-th power of the nodes of pair h, 1 or 2.
  static constexpr T power(int h, int j) { return h == 0 ? T(1) : T(1 << j); }
};
