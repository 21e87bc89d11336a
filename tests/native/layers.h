// Random layers on random sizes, tensors of small integers, and G by plain loops.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#ifdef FUZZ_EMULATED
#include "../../csrc/cuda/kernels.h"
#else
#include "../../csrc/cpu/kernels.h"
#endif

namespace lapkernels {

#ifdef FUZZ_EMULATED
using cuda::Context;
using cuda::kernels;
#endif

inline std::mt19937_64 random_bits;
inline int64_t thread_count = 1;

inline int64_t draw(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_bits);
}

#ifdef FUZZ_EMULATED
// Small layers, since a barrier costs as much as a thousand additions.
constexpr bool kSmall = true;

// Memory of the last call is kept until the next.
inline Context context() {
  static std::vector<std::unique_ptr<char[]>> kept;
  kept.clear();
  return {nullptr, [](int64_t bytes) -> void* {
            kept.emplace_back(new char[bytes]);
            std::memset(kept.back().get(), 0xff, bytes);
            return kept.back().get();
          }};
}
#else
constexpr bool kSmall = false;

// A program has the kernels of one SIMD level.
namespace FUZZ_LEVEL {
template <class T>
const Kernels<T>& table_of();
}  // namespace FUZZ_LEVEL

template <class T>
const Kernels<T>& kernels(int64_t) {
  return FUZZ_LEVEL::table_of<T>();
}

inline void run_threads(int64_t tasks, const Body& body) {
  std::vector<std::thread> threads;
  for (int64_t id = 0; id < thread_count; ++id)
    threads.emplace_back([&, id] {
      for (int64_t task = id; task < tasks; task += thread_count) body(task);
    });
  for (std::thread& thread : threads) thread.join();
}

inline Context context() { return {run_threads, thread_count}; }
#endif

// A tensor of small integers in memory of its own, contiguous or with its dimensions laid out in a
// random order.
template <class T>
struct Block6 {
  std::vector<T> memory;  // of exactly as many entries
  Grid<T> grid;

  Block6(std::vector<int64_t> size, int64_t low, int64_t high) {
    int64_t count = 1;
    std::vector<int> order{5, 4, 3, 2, 1, 0};
    if (draw(0, 1)) std::shuffle(order.begin(), order.end(), random_bits);
    for (int d : order) {
      grid.size[d] = size[d];
      grid.stride[d] = count;
      count *= size[d];
    }
    memory.resize(count);
    for (T& entry : memory) entry = T(draw(low, high));
    grid.data = memory.data();
  }
  Block6(const Block6& other) : memory(other.memory), grid(other.grid) {
    grid.data = memory.data();
  }
  Grid<const T> view() const {
    Grid<const T> g{grid.data, {}, {}};
    std::copy(grid.size, grid.size + 6, g.size);
    std::copy(grid.stride, grid.stride + 6, g.stride);
    return g;
  }
  T& at(int64_t v, int64_t n, int64_t c, int64_t z, int64_t y, int64_t x) const {
    const int64_t index[6] = {v, n, c, z, y, x};
    int64_t offset = 0;
    for (int d = 0; d < 6; ++d) offset += index[d] * grid.stride[d];
    return grid.data[offset];
  }
};

// A random layer on random sizes: small grid [A, t], large grid [B, u].
struct Layer {
  Taps taps{};
  int64_t small[3], large[3], a, b, columns, samples;

  // A large layer has few channels and so many positions that the kernels go slab by slab.
  explicit Layer(bool is_large = false) {
    // A first layer has many rows and few channels.
    const bool is_first = !kSmall && !is_large && draw(0, 2) == 0;
    const int dims = is_first ? 2 : int(draw(1, is_large ? 2 : 3));
    taps.groups = !is_first && draw(0, 3) == 0 ? draw(2, 3) : 1;
    const int64_t most = is_large ? 10 : !kSmall && draw(0, 4) == 0 ? 40 : 7;
    a = is_first ? draw(1, 70) : taps.groups * draw(1, most);
    b = is_first ? draw(1, 4) : taps.groups * draw(1, most);
    columns = draw(1, 4);
    samples = draw(1, 4);
    // 3 x 3 or 5 x 5, stride 1: the kernels' fast ways
    const bool plain = is_first || draw(0, 1) == 0;
    const int64_t side = draw(0, 2) == 0 ? 5 : 3;
    for (int d = 0; d < 3; ++d) {
      const bool used = d >= 3 - dims;
      taps.kernel[d] = !used ? 1 : plain ? side : draw(1, 4);
      taps.stride[d] = !used || plain ? 1 : draw(1, 3);
      taps.dilation[d] = !used || plain ? 1 : draw(1, 3);
      taps.padding[d] = used ? draw(-1, 4) : 0;
      const int64_t longest = kSmall ? 9 / dims : dims == 1 ? 300 : dims == 2 ? 24 : 7;
      const int64_t many = dims == 1 ? 30000 : 120;
      small[d] = !used ? 1 : is_large ? draw(many, many + 40) : draw(1, longest);
      const int64_t reach =
          (small[d] - 1) * taps.stride[d] + taps.dilation[d] * (taps.kernel[d] - 1);
      large[d] = used ? std::max<int64_t>(1, reach + 1 - 2 * taps.padding[d] + draw(-2, 2)) : 1;
    }
  }
  // A linear layer: one position, and enough samples for vectors along them.
  static Layer flat() {
    Layer l;
    l.taps = {{1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, draw(0, 3) ? 1 : draw(2, 3)};
    l.a = l.taps.groups * draw(1, 20);
    l.b = l.taps.groups * draw(1, 20);
    l.samples = draw(0, 1) ? 4 * draw(1, 16) : draw(1, 64);
    std::fill(l.small, l.small + 3, 1);
    std::fill(l.large, l.large + 3, 1);
    return l;
  }
  int64_t taps_in_all() const { return taps.kernel[0] * taps.kernel[1] * taps.kernel[2]; }
  std::vector<int64_t> small_size(int64_t v, int64_t n) const {
    return {v, n, a, small[0], small[1], small[2]};
  }
  std::vector<int64_t> large_size(int64_t v, int64_t n) const {
    return {v, n, b, large[0], large[1], large[2]};
  }
  std::vector<int64_t> weight_size() const {
    return {1, a, b / taps.groups, taps.kernel[0], taps.kernel[1], taps.kernel[2]};
  }
  // Calls body(t, u, k) for every position, the place it reads and the tap, inside the large grid.
  template <class F>
  void each(F body) const {
    int64_t t[3], k[3], u[3];
    auto walk = [&](auto&& self, int d) -> void {
      if (d == 3) return body(t, u, k);
      for (t[d] = 0; t[d] < small[d]; ++t[d])
        for (k[d] = 0; k[d] < taps.kernel[d]; ++k[d]) {
          u[d] = t[d] * taps.stride[d] - taps.padding[d] + k[d] * taps.dilation[d];
          if (u[d] >= 0 && u[d] < large[d]) self(self, d + 1);
        }
    };
    walk(walk, 0);
  }
  int64_t tap(const int64_t k[3]) const {
    return (k[0] * taps.kernel[1] + k[1]) * taps.kernel[2] + k[2];
  }
};

inline void require(bool holds, const char* kernel, double got, double wanted) {
  if (holds) return;
  std::printf("%s: %.17g instead of %.17g\n", kernel, got, wanted);
  std::exit(1);
}

// Every entry of `got` is wanted(v, n, c, z, y, x).
template <class T, class F>
void require_each(const char* kernel, const Block6<T>& got, F wanted) {
  const int64_t* size = got.grid.size;
  for (int64_t v = 0; v < size[0]; ++v)
    for (int64_t n = 0; n < size[1]; ++n)
      for (int64_t c = 0; c < size[2]; ++c)
        for (int64_t z = 0; z < size[3]; ++z)
          for (int64_t y = 0; y < size[4]; ++y)
            for (int64_t x = 0; x < size[5]; ++x) {
              const double value = wanted(v, n, c, z, y, x);
              require(got.at(v, n, c, z, y, x) == value, kernel, got.at(v, n, c, z, y, x), value);
            }
}

// The weight `out` is the update of `before` by value[(a, b, k)].
template <class T>
void require_weight(const char* kernel, const Layer& l, const Block6<T>& out,
                    const Block6<T>& before, Update update, const std::vector<double>& value) {
  require_each(kernel, out, [&](int64_t, int64_t a, int64_t b, auto... k) {
    const int64_t at[3] = {k...};
    const int64_t i = (a * (l.b / l.taps.groups) + b) * l.taps_in_all() + l.tap(at);
    return update.decay * before.at(0, a, b, k...) + update.scale * value[i];
  });
}

// G[v][n][(a, b, k)] by plain loops.
template <class T>
std::vector<double> gradients(const Layer& l, const Block6<T>& small, const Block6<T>& large,
                              int64_t v, int64_t n, bool square_small, bool square_large) {
  const int64_t kernel = l.taps_in_all(), b_group = l.b / l.taps.groups,
                a_group = l.a / l.taps.groups;
  std::vector<double> g(l.a * b_group * kernel, 0.0);
  const int64_t vs = std::min(v, small.grid.size[0] - 1), vl = std::min(v, large.grid.size[0] - 1);
  l.each([&](const int64_t* t, const int64_t* u, const int64_t* k) {
    for (int64_t a = 0; a < l.a; ++a)
      for (int64_t b = 0; b < b_group; ++b) {
        double s = small.at(vs, n, a, t[0], t[1], t[2]);
        double x = large.at(vl, n, a / a_group * b_group + b, u[0], u[1], u[2]);
        if (square_small) s *= s;
        if (square_large) x *= x;
        g[(a * b_group + b) * kernel + l.tap(k)] += s * x;
      }
  });
  return g;
}

}  // namespace lapkernels
