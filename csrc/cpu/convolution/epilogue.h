// What goes through a convolution with f(W) = W or W², towards a layer's input or, transposed, its
// output, and what becomes of the sums.
//
//   conv:        out[b, u] = sum_{a, k, t} f(W[a, b, k]) m[a, t], t * stride - padding + k *
//   dilation
//                = u
//   transposed:  out[a, t] = sum_{b, k} f(W[a, b, k]) m[b, t * stride - padding + k * dilation]

// Where sample n and channel c of a grid have the position u.
template <class G>
auto* address(const G& grid, int64_t n, int64_t c, const auto& u) {
  return grid.data + n * grid.stride[1] + c * grid.stride[2] + u[0] * grid.stride[3] +
         u[1] * grid.stride[4] + u[2] * grid.stride[5];
}

// Rows of results, `pitch` apart, and a mask: what is not positive there makes a result zero.
template <class T>
struct MaskedRows {
  T* data = nullptr;
  int64_t pitch = 0;
  const T* mask = nullptr;
  int64_t mask_pitch = 0;
};

// m goes through a layer, and out <- decay * out + scale * sum * phi'(z), or by W² and phi'(z)².
template <class T>
struct Stream {
  Grid<const T> m;
  Grid<T> out;
  Update update;
  Grid<const T> z;  // not read without slopes
  Slopes<T> slopes;
  bool masks;  // the results are the sums themselves, or zeros where z is not positive

  Stream(const Grid<const T>& m_, const Grid<T>& out_, Update update_, const Grid<const T>& z_,
         Activation activation, double slope, bool squared)
      : m(m_),
        out(out_),
        update(update_),
        z(z_),
        slopes(activation, slope, squared),
        masks((activation == Activation::identity || activation == Activation::relu) &&
              update.decay == 0 && update.scale == 1) {}

  bool has_slopes() const { return slopes.fill != nullptr; }

  // sums[x] belongs to channel c at u + x * step along the last axis.
  void write(int64_t n, int64_t c, const std::array<int64_t, 3>& u, int64_t step, const T* sums,
             int64_t count) const {
    write_row<T>(address(out, n, c, u), out.stride[5] * step, update, sums, slopes,
                 has_slopes() ? address(z, n, c, u) : nullptr, z.stride[5] * step, count);
  }

  // Where sums of channels from c on can be stored as they are made: along rows of steps of `step`.
  MaskedRows<T> direct(int64_t n, int64_t c, const std::array<int64_t, 3>& u, int64_t step) const {
    if (!masks || out.stride[5] * step != 1 || (has_slopes() && z.stride[5] * step != 1)) return {};
    return {address(out, n, c, u), out.stride[2], has_slopes() ? address(z, n, c, u) : nullptr,
            z.stride[2]};
  }
};
