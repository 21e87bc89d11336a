// Standard headers of the kernels, included before any instruction set is turned on: their inline
// functions must run on every machine.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

#include "kernels.h"

namespace lapkernels {

// Bytes of a core's second-level cache, or as many as any has where the system does not tell.
inline int64_t second_level_bytes() {
  constexpr int64_t kLeast = 512 << 10;
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const int64_t bytes = std::max<int64_t>(kLeast, sysconf(_SC_LEVEL2_CACHE_SIZE));
  return bytes;
#else
  return kLeast;
#endif
}

}  // namespace lapkernels
