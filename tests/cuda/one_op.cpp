// One op by its CUDA kernel, emulated, against plain loops: what the tests of the emulator build
// with and without a mistake in the kernel. Exits with 1 if a number is wrong.
#include <cstdio>
#include <memory>
#include <vector>

#include "csrc/cuda/product/finish.cu"
#include "csrc/cuda/jacobian_squared_sum.cu"
#include "csrc/cuda/product/tile_sum.cu"

using namespace lapkernels;

constexpr int64_t kColumns = 3, kSamples = 3, kRows = 20, kChannels = 6, kTaps = 3, kPositions = 37,
                  kStride = 2, kPadding = 1, kInput = 74, kGroups = 2;

int main() {
  int seed = 1;
  const auto numbers = [&](int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>((seed = seed * 75 % 65537) % 5 - 2);
    return values;
  };
  const auto small = numbers(kColumns * kSamples * kRows * kPositions);
  const auto large = numbers(kSamples * kChannels * kInput);
  constexpr int64_t per_group = kChannels / kGroups;
  std::vector<float> out(kRows * per_group * kTaps, NAN);

  std::vector<std::unique_ptr<char[]>> kept;
  const cuda::Context context{nullptr, [&](int64_t bytes) -> void* {
                                kept.emplace_back(new char[bytes]);
                                std::memset(kept.back().get(), 0xff, bytes);
                                return kept.back().get();
                              }};
  const Taps taps{{1, 1, kTaps}, {1, 1, kStride}, {0, 0, kPadding}, {1, 1, 1}, kGroups};
  cuda::jacobian_squared_sum<float>(
      context,
      {out.data(), {1, kRows, per_group, 1, 1, kTaps}, {0, per_group * kTaps, kTaps, 0, 0, 1}},
      {0, 1},
      {small.data(),
       {kColumns, kSamples, kRows, 1, 1, kPositions},
       {kSamples * kRows * kPositions, kRows * kPositions, kPositions, 0, 0, 1}},
      {large.data(),
       {1, kSamples, kChannels, 1, 1, kInput},
       {0, kChannels * kInput, kInput, 0, 0, 1}},
      taps);

  for (int64_t a = 0; a < kRows; ++a)
    for (int64_t b = 0; b < per_group; ++b)
      for (int64_t k = 0; k < kTaps; ++k) {
        double wanted = 0;
        for (int64_t vn = 0; vn < kColumns * kSamples; ++vn) {
          double g = 0;
          for (int64_t t = 0; t < kPositions; ++t) {
            const int64_t u = t * kStride - kPadding + k;
            const int64_t channel = a / (kRows / kGroups) * per_group + b;
            if (u >= 0 && u < kInput)
              g += small[(vn * kRows + a) * kPositions + t] *
                   large[(vn % kSamples * kChannels + channel) * kInput + u];
          }
          wanted += g * g;
        }
        const double got = out[(a * per_group + b) * kTaps + k];
        if (!(got == wanted)) {
          std::printf("D[%d, %d, %d] is %g, not %g\n", int(a), int(b), int(k), got, wanted);
          return 1;
        }
      }
  std::printf("all numbers agree\n");
}
