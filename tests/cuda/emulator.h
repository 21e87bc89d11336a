// CUDA on a CPU, as far as the kernels in csrc/cuda use it: the same source, compiled by a C++
// compiler, run block by block.
//
// Blocks come in a shuffled order, and so do the threads within each stretch between barriers.
// Shared memory is filled with NaN bits before each block. The threads of a block are fibers, or,
// with EMULATOR_THREADS, threads of the operating system, so that a race is one for ThreadSanitizer
// too. A barrier that some threads never reach ends the program.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define LAPKERNELS_SHARED(type, name) type& name = emulator::shared<type, __COUNTER__>()
#define threadIdx emulator::thread_index
#define blockIdx emulator::block_index
#define blockDim emulator::block_size
#define __syncthreads() emulator::wait_for_all()

namespace emulator {

struct Index {
  int x;
};

inline thread_local Index thread_index;
inline thread_local Index block_index;
inline thread_local Index block_size;

// Shared memory of all kernels run so far. Each piece is a heap block of its own: a step past its
// end is an error that AddressSanitizer sees.
struct Piece {
  void* memory;
  size_t size;
};
inline std::vector<Piece> pieces;
inline std::mutex pieces_lock;

inline void poison(const Piece& piece) { std::memset(piece.memory, 0xff, piece.size); }

inline void poison_all() {
  const std::lock_guard guard(pieces_lock);
  for (const Piece& piece : pieces) poison(piece);
}

template <class Type, int>
Type& shared() {
  static Type* const memory = [] {
    const std::lock_guard guard(pieces_lock);
    const size_t size = (sizeof(Type) + alignof(Type) - 1) / alignof(Type) * alignof(Type);
    pieces.push_back({std::aligned_alloc(alignof(Type), size), size});
    poison(pieces.back());
    return static_cast<Type*>(pieces.back().memory);
  }();
  return *memory;
}

[[noreturn]] inline void fail(const char* message) {
  std::fprintf(stderr, "emulator: %s\n", message);
  std::abort();
}

using Body = std::function<void()>;
inline std::mt19937 shuffler{1};

inline std::vector<int> shuffled(int count) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), shuffler);
  return order;
}

#ifdef EMULATOR_THREADS

inline std::barrier<>* barrier;

inline void wait_for_all() { barrier->arrive_and_wait(); }

inline void run_blocks(const std::vector<int>& blocks, int threads, const Body& body) {
  std::barrier<> all(threads);
  barrier = &all;
  std::vector<std::thread> team;
  for (int id : shuffled(threads))
    team.emplace_back([&, id] {
      thread_index.x = id;
      block_size.x = threads;
      for (int block : blocks) {
        if (id == 0) poison_all();
        all.arrive_and_wait();
        block_index.x = block;
        body();
        all.arrive_and_wait();
      }
    });
  for (std::thread& thread : team) thread.join();
}

#else

// A fiber is resumed by the loop in run_block, and goes back to it at every barrier.
struct Fiber {
  static constexpr size_t kStack = 128 << 10;
  std::unique_ptr<char[]> stack{new char[kStack]};
  ucontext_t context;
  bool done;
};
inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline Fiber* current;
inline const Body* current_body;

inline void wait_for_all() { swapcontext(&current->context, &scheduler); }

inline void run_fiber() {
  (*current_body)();
  current->done = true;
}

inline void run_block(int block, int threads, const Body& body) {
  if (fibers.size() < static_cast<size_t>(threads)) fibers.resize(threads);
  current_body = &body;
  block_index.x = block;
  block_size.x = threads;
  const std::vector<int> order = shuffled(threads);
  for (int id : order) {
    Fiber& fiber = fibers[id];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = Fiber::kStack;
    fiber.context.uc_link = &scheduler;
    fiber.done = false;
    makecontext(&fiber.context, run_fiber, 0);
  }
  for (int running = threads; running > 0;) {
    running = 0;
    for (int id : order) {
      current = &fibers[id];
      thread_index.x = id;
      swapcontext(&scheduler, &current->context);
      running += !current->done;
    }
    if (running != 0 && running != threads) fail("threads of a block wait at different barriers");
  }
}

inline void run_blocks(const std::vector<int>& blocks, int threads, const Body& body) {
  for (int block : blocks) {
    poison_all();
    run_block(block, threads, body);
  }
}

#endif

// Every kernel that was launched.
inline std::set<void*> launched;

// A launch of the kernel at this address: body() is one thread's work.
inline void run(void* kernel, int blocks, int threads, const Body& body) {
  launched.insert(kernel);
  run_blocks(shuffled(blocks), threads, body);
}

inline float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To the nearest, ties to even.
inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float half_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

inline uint16_t float_to_half(float value) {
  if (std::isnan(value)) return 0x7fff;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (size >= 65520.0f) return sign | 0x7c00;
  // A unit in the last place of float16 at this size; nearbyint rounds ties to even.
  const int exponent = std::max(size == 0 ? -14 : std::ilogb(size), -14);
  const int units = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return static_cast<uint16_t>(sign | (units + ((exponent + 14) << 10)));
}

}  // namespace emulator

using std::exp;
using std::min;
