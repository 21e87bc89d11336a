// Walks against plain division, in 32 and 64 bits, and the emulator's half precision against its
// definition. Exits with 1 if something is wrong.
#include <random>
#include <string>

#include "../../csrc/cuda/base/operands.h"

using namespace lapkernels::cuda;

std::mt19937_64 bits{1};

int64_t draw(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(bits);
}

void require(bool right, const char* what) {
  if (right) return;
  std::printf("%s is wrong\n", what);
  std::exit(1);
}

void check_divider() {
  for (int round = 0; round < 20000; ++round) {
    const int64_t size = draw(1, draw(0, 1) ? 50 : INT32_MAX);
    const Divider by = divider(size);
    const int64_t near = size * draw(0, INT32_MAX / size);
    for (int64_t n : {draw(0, INT32_MAX), near, std::max<int64_t>(near - 1, 0), int64_t{INT32_MAX}})
      require(by(static_cast<uint32_t>(n)) == n / size, "a division");
  }
}

// Sizes of all digits up to `most`; returns whether the count is beyond 32 bits.
bool check_walk(int64_t most) {
  Digit outer{draw(1, most), draw(-9, 9)}, inner{draw(1, most), draw(-9, 9)};
  Digit fast{draw(1, most), draw(-9, 9)};
  Path path;
  int64_t stride[3];
  for (int d = 0; d < 3; ++d) {
    path.size[d] = draw(1, most);
    path.step[d] = draw(-3, 3);
    path.start[d] = draw(-5, 5);
    stride[d] = draw(-9, 9);
  }
  Walk w = walk(outer, inner, path, fast);
  for (int d = 0; d < 3; ++d) w.stride[2 + d] = stride[d];
  w.origin = draw(-99, 99);
  for (int round = 0; round < 20; ++round) {
    const int64_t index = draw(0, w.count - 1);
    int64_t rest = index, offset = w.origin + rest % fast.size * fast.stride;
    rest /= fast.size;
    int64_t at[3];
    for (int d = 2; d >= 0; --d) {
      const int64_t digit = rest % path.size[d];
      at[d] = path.start[d] + digit * path.step[d];
      offset += digit * stride[d];
      rest /= path.size[d];
    }
    offset += rest % inner.size * inner.stride + rest / inner.size * outer.stride;
    const Place place = w(index);
    require(place.offset == offset, "an offset");
    for (int d = 0; d < 3; ++d) require(place.at[d] == at[d], "a coordinate");
  }
  require(w(w.count).at[0] == kOutside, "an index past the end");
  return w.count > INT32_MAX;
}

void check_half() {
  for (int code = 0; code < 0x7c00; ++code) {
    const float value = emulator::half_to_float(code), next = emulator::half_to_float(code + 1);
    require(emulator::float_to_half(value) == code, "a float16");
    require(emulator::float_to_half(-value) == (code | 0x8000), "a negative float16");
    if (code + 1 == 0x7c00) break;
    const float middle = value + (next - value) / 2;
    require(emulator::float_to_half(middle) == code + code % 2, "a tie in float16");
    require(emulator::float_to_half(std::nextafter(middle, next)) == code + 1, "a rounding up");
  }
  require(emulator::float_to_half(1e6f) == 0x7c00, "infinity");
  for (int round = 0; round < 1000; ++round) {
    const uint16_t code = static_cast<uint16_t>(draw(0, 0x7f00));
    require(emulator::float_to_bfloat16(emulator::bfloat16_to_float(code)) == code, "a bfloat16");
  }
}

int main() {
  check_divider();
  int wide = 0, narrow = 0;
  for (int round = 0; round < 300; ++round) ++(check_walk(round % 2 ? 5 : 200) ? wide : narrow);
  require(wide > 50 && narrow > 50, "the mixture of sizes");
  check_half();
  std::printf("all agree\n");
}
