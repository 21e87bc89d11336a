// How large this machine's caches are.
#pragma once

#include <algorithm>
#include <cstdint>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace lapkernels {

// Bytes of a core's second-level cache; a small one where the system does not tell.
inline int64_t second_level_bytes() {
  constexpr int64_t kSmall = 512 << 10;
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const int64_t bytes = std::max<int64_t>(kSmall, sysconf(_SC_LEVEL2_CACHE_SIZE));
  return bytes;
#else
  return kSmall;
#endif
}

}  // namespace lapkernels
