// The choice of instruction set, made once, from what the processor says it has. The environment
// variable LAPKERNELS_SIMD (baseline, avx2 or avx512) sets an upper bound.
#include <cstdlib>
#include <string_view>

#include "../kernels.h"

namespace lapkernels {

#define LAPKERNELS_TABLES(isa)  \
  namespace isa {               \
  template <class T>            \
  const Kernels<T>& table_of(); \
  }
LAPKERNELS_TABLES(baseline)
LAPKERNELS_TABLES(avx2)
LAPKERNELS_TABLES(avx512)
#undef LAPKERNELS_TABLES

namespace {

enum class Level { baseline, avx2, avx512 };

[[maybe_unused]] Level level() {
#if defined(__x86_64__)
  static const Level found = [] {
    __builtin_cpu_init();
    const char* wish = std::getenv("LAPKERNELS_SIMD");
    const std::string_view most = wish ? wish : "avx512";
    if (most == "baseline") return Level::baseline;
    if (most != "avx2" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
      return Level::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Level::avx2;
    return Level::baseline;
  }();
  return found;
#else
  return Level::baseline;
#endif
}

}  // namespace

template <class T>
const Kernels<T>& kernels([[maybe_unused]] int64_t lanes) {
#if defined(__x86_64__)
  // Work that fills more than half of 32-byte vectors, and no more than half of 64-byte ones.
  const int64_t bytes = lanes * static_cast<int64_t>(sizeof(T));
  const bool halves = bytes > 16 && bytes <= 32;
  if (level() == Level::avx512 && !halves) return avx512::table_of<T>();
  if (level() != Level::baseline) return avx2::table_of<T>();
#endif
  return baseline::table_of<T>();
}
template const Kernels<float>& kernels<float>(int64_t);
template const Kernels<double>& kernels<double>(int64_t);

}  // namespace lapkernels
