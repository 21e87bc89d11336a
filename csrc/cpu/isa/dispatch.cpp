// The choice of instruction set, made once, from what the processor says it has. The environment
// variable LAPKERNELS_SIMD (baseline, avx2 or avx512) sets an upper bound.
#include <cstdlib>
#include <string_view>

#include "../kernels.h"

namespace lapkernels {

#define LAPKERNELS_TABLES(isa)           \
  namespace isa {                        \
  const Kernels<float>& float_table();   \
  const Kernels<double>& double_table(); \
  }
LAPKERNELS_TABLES(baseline)
LAPKERNELS_TABLES(avx2)
LAPKERNELS_TABLES(avx512)
#undef LAPKERNELS_TABLES

namespace {

enum class Level { baseline, avx2, avx512 };

Level level() {
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

// Whether vectors of 32 bytes are filled by more than half, and those of 64 by no more.
[[maybe_unused]] bool halves(int64_t lanes, int64_t size) {
  return lanes * size > 16 && lanes * size <= 32;
}

}  // namespace

template <>
const Kernels<float>& kernels<float>(int64_t lanes) {
#if defined(__x86_64__)
  if (level() == Level::avx512 && !halves(lanes, sizeof(float))) return avx512::float_table();
  if (level() != Level::baseline) return avx2::float_table();
#endif
  return baseline::float_table();
}

template <>
const Kernels<double>& kernels<double>(int64_t lanes) {
#if defined(__x86_64__)
  if (level() == Level::avx512 && !halves(lanes, sizeof(double))) return avx512::double_table();
  if (level() != Level::baseline) return avx2::double_table();
#endif
  return baseline::double_table();
}

}  // namespace lapkernels
