// Random calls of every torch-free kernel against plain loops, for builds with sanitizers.
//
// Inputs are small integers, so every sum is exact and the comparison is equality. Each buffer is
// its own heap block of exactly its size: a read or write past its end is a report.
// The kernels are those of the SIMD level FUZZ_LEVEL, or with FUZZ_EMULATED those for CUDA, run by
// the emulator; THREADS has no meaning then. With `flat` all layers are linear ones, of up to 64
// samples. usage: fuzz SEED ROUNDS THREADS [flat]

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "columns.h"
#include "layers.h"

using namespace lapkernels;

namespace {

template <class T>
void check_weight_kernels(const Layer& l) {
  const bool on_large = draw(0, 1);
  Block6<T> small(l.small_size(on_large ? 1 : l.columns, l.samples), -2, 2);
  Block6<T> large(l.large_size(on_large ? l.columns : 1, l.samples), -2, 2);
  const int64_t size = l.a * (l.b / l.taps.groups) * l.taps_in_all();
  std::vector<T> variance(size);
  for (T& entry : variance) entry = T(draw(0, 3));
  const Grid<const T> weights{variance.data(), {}, {}};
  const Update update{double(draw(0, 2)), double(draw(1, 2))};

  std::vector<std::vector<double>> g(l.samples * l.columns);
  for (int64_t n = 0; n < l.samples; ++n)
    for (int64_t v = 0; v < l.columns; ++v)
      g[n * l.columns + v] = gradients(l, small, large, v, n, false, false);

  auto compare_weight = [&](const char* kernel, const std::vector<double>& wanted, auto call) {
    Block6<T> out(l.weight_size(), -3, 3);
    const Block6<T> before = out;
    if (update.decay == 0) std::fill(out.memory.begin(), out.memory.end(), T(NAN));
    call(out.grid);
    require_weight(kernel, l, out, before, update, wanted);
  };

  std::vector<double> squares(size, 0.0), weighted(size, 0.0), sums(size, 0.0);
  const bool square_small = draw(0, 1);
  for (int64_t n = 0; n < l.samples; ++n) {
    for (int64_t v = 0; v < l.columns; ++v)
      for (int64_t i = 0; i < size; ++i)
        squares[i] += g[n * l.columns + v][i] * g[n * l.columns + v][i];
    for (int64_t v = 0; v < l.columns; ++v)
      for (int64_t i = 0; i < size; ++i) sums[i] += g[n * l.columns + v][i];
    for (int64_t v = 0; v < l.columns; ++v) {
      const auto m = gradients(l, small, large, v, n, square_small, !square_small);
      for (int64_t i = 0; i < size; ++i) weighted[i] += m[i];
    }
  }
  compare_weight("jacobian_squared_sum", squares, [&](Grid<T> out) {
    kernels<T>().jacobian_squared_sum(context(), out, update, small.view(), large.view(), l.taps);
  });
  compare_weight("squared_conv_weight", weighted, [&](Grid<T> out) {
    kernels<T>().squared_conv_weight(context(), out, update, small.view(), large.view(), l.taps,
                                     square_small);
  });

#ifndef FUZZ_EMULATED
  compare_weight("conv_weight", sums, [&](Grid<T> out) {
    kernels<T>().conv_weight(context(), out, update, small.view(), large.view(), l.taps);
  });
#endif

  Block6<T> dot({1, 1, 1, 1, l.samples, l.columns}, 0, 0);
  Block6<T> gram({1, 1, 1, l.samples, l.columns, l.columns}, 0, 0);
  kernels<T>().jacobian_squared_dot(context(), dot.grid, {0, 1}, small.view(), large.view(),
                                    weights, l.taps);
  kernels<T>().jacobian_gram(context(), gram.grid, {0, 1}, small.view(), large.view(), weights,
                             l.taps);
  for (int64_t n = 0; n < l.samples; ++n)
    for (int64_t v = 0; v < l.columns; ++v)
      for (int64_t w = 0; w < l.columns; ++w) {
        double total = 0;
        for (int64_t i = 0; i < size; ++i)
          total += g[n * l.columns + v][i] * variance[i] * g[n * l.columns + w][i];
        const double got = gram.at(0, 0, 0, n, v, w);
        // Sums of many products of four integers can leave float's range of exact integers.
        const double slack =
            sizeof(T) == 4 && std::abs(total) > 1e6 ? 1e-5 * std::abs(total) + 200 : 0;
        require(std::abs(got - total) <= slack, "jacobian_gram", got, total);
        if (v == w)
          require(std::abs(dot.at(0, 0, 0, 0, n, v) - total) <= slack, "jacobian_squared_dot",
                  dot.at(0, 0, 0, 0, n, v), total);
      }
}

template <class T>
void check_input_kernel(bool is_large) {
  const Layer l(is_large);
  const bool transposed = draw(0, 1);
  Block6<T> weight(l.weight_size(), -2, 2);
  Block6<T> m(transposed ? l.large_size(1, l.samples) : l.small_size(1, l.samples), 0, 2);
  Block6<T> out(transposed ? l.small_size(1, l.samples) : l.large_size(1, l.samples), 0, 0);
  Block6<T> slope(transposed ? l.small_size(1, l.samples) : l.large_size(1, l.samples), -2, 2);
#ifdef FUZZ_EMULATED
  const bool given = draw(0, 1), squared = true;
#else
  const bool given = draw(0, 1), squared = draw(0, 1);
#endif
  if (squared)
    kernels<T>().squared_conv_input(context(), out.grid, {0, 1}, m.view(), weight.view(), l.taps,
                                    transposed, slope.view(),
                                    given ? Activation::given : Activation::identity, 0.0);
  else
    kernels<T>().conv_input(context(), out.grid, {0, 1}, m.view(), weight.view(), l.taps,
                            transposed);
  const int64_t a_group = l.a / l.taps.groups, b_group = l.b / l.taps.groups;
  const std::vector<int64_t> size(out.grid.size, out.grid.size + 6);
  Block6<T> wanted(size, 0, 0);
  for (int64_t n = 0; n < l.samples; ++n)
    l.each([&](const int64_t* t, const int64_t* u, const int64_t* k) {
      for (int64_t a = 0; a < l.a; ++a)
        for (int64_t b = 0; b < b_group; ++b) {
          const T entry = weight.at(0, a, b, k[0], k[1], k[2]), w = squared ? entry * entry : entry;
          const int64_t channel = a / a_group * b_group + b;
          if (transposed)
            wanted.at(0, n, a, t[0], t[1], t[2]) += w * m.at(0, n, channel, u[0], u[1], u[2]);
          else
            wanted.at(0, n, channel, u[0], u[1], u[2]) += w * m.at(0, n, a, t[0], t[1], t[2]);
        }
    });
  require_each(squared ? "squared_conv_input" : "conv_input", out, [&](auto... at) {
    const T s = slope.at(at...), sum = wanted.at(at...);
    return given && squared ? sum * s * s : sum;
  });
}

#ifndef FUZZ_EMULATED
// Shared columns times a factor and a weight, with zeros beside a band.
template <class T>
void check_products() {
  const int64_t columns = draw(1, 40), samples = draw(1, 3);
  const int64_t features = draw(1, 20) * draw(1, 20), inputs = draw(1, 60);
  Block6<T> rows({1, columns, features, 1, 1, 1}, -2, 2),
      factor({1, samples, features, 1, 1, 1}, -2, 2);
  Block6<T> weight({1, features, inputs, 1, 1, 1}, -2, 2);
  Block6<T> out({columns, samples, inputs, 1, 1, 1}, 3, 3);
  for (Block6<T>* block : {&rows, &factor, &weight, &out}) {
    Grid<T>& grid = block->grid;
    grid.stride[2] = 1;
    grid.stride[1] = grid.size[2];
    grid.stride[0] = grid.size[1] * grid.size[2];
  }
  for (int64_t v = 0; v < columns; ++v)
    for (int64_t f = 0; f < std::min(v, features); ++f) rows.grid.data[v * features + f] = 0;
  kernels<T>().scaled_product(context(), out.grid, {1, 2}, rows.view(), factor.view(),
                              weight.view());
  require_each("scaled_product", out, [&](int64_t v, int64_t n, int64_t j, auto...) {
    double total = 0;
    for (int64_t f = 0; f < features; ++f)
      total += double(rows.at(0, v, f, 0, 0, 0)) * factor.at(0, n, f, 0, 0, 0) *
               weight.at(0, f, j, 0, 0, 0);
    return 3 + 2 * total;
  });
}

// Rows of a linear layer, by a chain of one.
template <class T>
void check_rows() {
  const int64_t samples = draw(1, 14), outputs = draw(1, 20), inputs = draw(1, 70);
  const bool same = draw(0, 1);
  Block6<T> s({1, samples, outputs, 1, 1, 1}, -2, 2), x({1, samples, inputs, 1, 1, 1}, -2, 2);
  Block6<T> weight({1, outputs, inputs, 1, 1, 1}, -2, 2);
  Block6<T> squares({1, outputs, inputs, 1, 1, 1}, 0, 0), sums({1, outputs, inputs, 1, 1, 1}, 0, 0);
  Block6<T> m({1, samples, inputs, 1, 1, 1}, 0, 0), g({1, samples, inputs, 1, 1, 1}, 0, 0);
  // All but s have to be dense along the features.
  for (Block6<T>* block : {&x, &weight, &squares, &sums, &m, &g}) {
    block->grid.stride[1] = inputs;
    block->grid.stride[2] = 1;
  }
  std::vector<T> bias(outputs), bias_sums(outputs);
  ChainLayer<T> layer{};
  layer.linear = true;
  layer.weight = weight.view();
  layer.x = layer.z = x.view();
  layer.activation = Activation::given;
  layer.weight_squares = squares.grid;
  layer.weight_gradient = sums.grid;
  layer.bias_squares = bias.data();
  layer.bias_gradient = bias_sums.data();
  layer.m = m.grid;
  layer.g = g.grid;
  Grid<const T> start = s.view();
  if (same) start.stride[1] = 0;
  kernels<T>().layer_chain(context(), start, start, std::span<const ChainLayer<T>>(&layer, 1));
  auto at = [&](int64_t n, int64_t o) { return s.at(0, same ? 0 : n, o, 0, 0, 0); };
  for (int64_t o = 0; o < outputs; ++o) {
    T bias_total = 0;
    for (int64_t n = 0; n < samples; ++n) bias_total += at(n, o);
    require(bias[o] == bias_total && bias_sums[o] == bias_total, "bias", bias[o], bias_total);
  }
  // Sums over samples of s x or s x^2, and over outputs of s w or s w^2.
  const auto by_samples = [&](int64_t o, int64_t i, bool square) {
    T total = 0;
    for (int64_t n = 0; n < samples; ++n) {
      const T entry = x.at(0, n, i, 0, 0, 0);
      total += at(n, o) * (square ? entry * entry : entry);
    }
    return total;
  };
  const auto by_outputs = [&](int64_t n, int64_t i, bool square) {
    T total = 0;
    for (int64_t o = 0; o < outputs; ++o) {
      const T w = weight.at(0, o, i, 0, 0, 0);
      total += at(n, o) * (square ? w * w : w);
    }
    return total;
  };
  require_each("squares", squares,
               [&](int64_t, int64_t o, int64_t i, auto...) { return by_samples(o, i, true); });
  require_each("gradient", sums,
               [&](int64_t, int64_t o, int64_t i, auto...) { return by_samples(o, i, false); });
  require_each("m", m, [&](int64_t, int64_t n, int64_t i, auto...) {
    const T slope = x.at(0, n, i, 0, 0, 0);
    return by_outputs(n, i, true) * slope * slope;
  });
  require_each("g", g, [&](int64_t, int64_t n, int64_t i, auto...) {
    return by_outputs(n, i, false) * x.at(0, n, i, 0, 0, 0);
  });
}
#endif

template <class T>
void check_moments(bool shares_taps, bool is_large) {
  Layer l(is_large);
  // Taps share their products on enough channels with stride 1 only; a large layer is one line.
  while (shares_taps &&
         (l.taps.stride[0] * l.taps.stride[1] * l.taps.stride[2] > 1 || l.b / l.taps.groups < 8 ||
          l.taps_in_all() == 1 || (is_large && l.small[1] > 1)))
    l = Layer(is_large);
  const bool transposed = !shares_taps && draw(0, 1), reduce = !shares_taps && draw(0, 1);
  const bool bias = !shares_taps && draw(0, 1);
  Block6<T> x(transposed ? l.small_size(1, l.samples) : l.large_size(1, l.samples), -2, 2);
  const int64_t* output = transposed ? l.large : l.small;
  const int64_t channels = x.grid.size[2] / l.taps.groups, kernel = l.taps_in_all();
  const int64_t features = channels * kernel + bias;
  Block6<T> out({1, 1, 1, l.taps.groups, features, features}, 0, 0);
  kernels<T>().kronecker_input(context(), out.grid, {0, 1}, x.view(), output, l.taps, transposed,
                               reduce, bias);
  const int64_t positions = output[0] * output[1] * output[2];
  for (int64_t g = 0; g < l.taps.groups; ++g) {
    std::vector<double> moment(features * features, 0.0);
    for (int64_t n = 0; n < l.samples; ++n) {
      std::vector<double> patch(positions * features, 0.0);
      for (int64_t p = 0; bias && p < positions; ++p) patch[p * features + features - 1] = 1;
      l.each([&](const int64_t* t, const int64_t* u, const int64_t* k) {
        const int64_t* at = transposed ? u : t;
        const int64_t* from = transposed ? t : u;
        const int64_t p = (at[0] * output[1] + at[1]) * output[2] + at[2];
        for (int64_t c = 0; c < channels; ++c)
          patch[p * features + c * kernel + l.tap(k)] +=
              x.at(0, n, g * channels + c, from[0], from[1], from[2]);
      });
      if (reduce) {
        for (int64_t p = 1; p < positions; ++p)
          for (int64_t j = 0; j < features; ++j) patch[j] += patch[p * features + j];
        patch.resize(features);
      }
      for (size_t p = 0; p < patch.size(); p += features)
        for (int64_t i = 0; i < features; ++i)
          for (int64_t j = 0; patch[p + i] != 0 && j < features; ++j)
            moment[i * features + j] += patch[p + i] * patch[p + j];
    }
    for (int64_t i = 0; i < features; ++i)
      for (int64_t j = 0; j < features; ++j)
        require(out.at(0, 0, 0, g, i, j) == moment[i * features + j], "kronecker_input",
                out.at(0, 0, 0, g, i, j), moment[i * features + j]);
  }

  Block6<T> s(l.small_size(l.columns, l.samples), -2, 2);
  const int64_t rows = l.a / l.taps.groups;
  Block6<T> factor({1, 1, 1, l.taps.groups, rows, rows}, 0, 0);
  kernels<T>().kronecker_output(context(), factor.grid, {0, 1}, s.view(), l.taps.groups, reduce);
  require_each("kronecker_output", factor, [&](int64_t, int64_t, int64_t, auto... at) {
    const int64_t index[3] = {at...}, first = index[0] * rows;
    double total = 0;
    for (int64_t v = 0; v < l.columns; ++v)
      for (int64_t n = 0; n < l.samples; ++n) {
        double left = 0, right = 0;
        for (int64_t z = 0; z < l.small[0]; ++z)
          for (int64_t y = 0; y < l.small[1]; ++y)
            for (int64_t w = 0; w < l.small[2]; ++w) {
              const double p = s.at(v, n, first + index[1], z, y, w);
              const double q = s.at(v, n, first + index[2], z, y, w);
              left += p;
              right += q;
              if (!reduce) total += p * q;
            }
        if (reduce) total += left * right;
      }
    return total;
  });
}

template <class T>
void check_lists() {
  const int64_t entries = draw(1, 4);
  std::vector<std::vector<T>> h, d, mu, e;
  std::vector<Flat<T>> h_list, e_list;
  std::vector<Flat<const T>> d_list, mu_list, ones_list;
  std::vector<std::vector<T>> zeros;
  double kl = 0, squares = 0;
  for (int64_t i = 0; i < entries; ++i) {
    const int64_t size = draw(0, 3) ? draw(0, 50) : draw(30000, 70000);
    h.emplace_back(size, T(4));
    d.emplace_back(size, T(2));
    mu.emplace_back(size, T(3));
    e.emplace_back(size, T(6));
    zeros.emplace_back(size, T(0));
    kl += 0.5 * 9 * size;
    squares += 4.0 * size;
  }
  for (int64_t i = 0; i < entries; ++i) {
    const int64_t size = h[i].size();
    h_list.push_back({h[i].data(), size});
    e_list.push_back({e[i].data(), size});
    d_list.push_back({d[i].data(), size});
    mu_list.push_back({mu[i].data(), size});
    ones_list.push_back({zeros[i].data(), size});
  }
  T got = -1;
  kernels<T>().gaussian_kl(context(), &got, {0, 1}, mu_list, ones_list, 1.0);
  require(got == kl, "gaussian_kl", got, kl);
  kernels<T>().squared_gradient_sum(context(), &got, {0, 1}, d_list, ones_list);
  require(got == squares, "squared_gradient_sum", got, squares);
  kernels<T>().precision_update(context(), h_list, d_list, 2.0, 4.0);
  std::vector<Flat<const T>> precision;
  for (auto& entry : h_list) precision.push_back({entry.data, entry.size});
  kernels<T>().sample_from_precision(context(), e_list, mu_list, precision, 0.0, 2.0);
  for (auto& entry : h)
    for (T value : entry) require(value == 16, "precision_update", value, 16);
  for (auto& entry : e)
    for (T value : entry) require(value == 6, "sample_from_precision", value, 6);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t seed = argc > 1 ? std::atoll(argv[1]) : 0,
                rounds = argc > 2 ? std::atoll(argv[2]) : 100;
  thread_count = argc > 3 ? std::atoll(argv[3]) : 1;
  const bool only_flat = argc > 4;
  for (int64_t round = 0; round < rounds; ++round) {
    random_bits.seed(seed * 1000003 + round);
    const bool is_large = !kSmall && round % 4 == 3;
    check_weight_kernels<float>(Layer::flat());
    check_weight_kernels<double>(Layer::flat());
    if (only_flat) continue;
    check_weight_kernels<float>(Layer(is_large));
    check_weight_kernels<double>(Layer(is_large));
    check_input_kernel<float>(is_large);
    check_input_kernel<double>(is_large);
    check_window_kernels<float>();
    check_window_kernels<double>();
#ifndef FUZZ_EMULATED
    check_rows<float>();
    check_rows<double>();
    check_products<float>();
    check_products<double>();
    check_sparse_kernels<float>();
    check_sparse_kernels<double>();
#endif
    for (const bool shares_taps : {false, !kSmall}) {
      check_moments<float>(shares_taps, is_large && shares_taps);
      check_moments<double>(shares_taps, is_large && shares_taps);
    }
    check_lists<float>();
    check_lists<double>();
  }
  std::printf("%lld rounds agree (%s)\n", static_cast<long long>(rounds), kernels<float>().name);
}
