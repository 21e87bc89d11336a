// The torch-free face of the CPU kernels.
//
// Every kernel is compiled once for each instruction set (isa/*.cpp) into a table of functions;
// `kernels<T>()` gives the table of the best set this machine has. Work that fills `lanes` lanes of
// a vector is better served by shorter ones if half of the longest would stay empty, but not a
// quarter of the next.
#pragma once

#include <functional>

#include "../kernels.h"

namespace lapkernels {

// Runs body(task) for every task in [0, tasks), on as many threads as it likes.
using Body = std::function<void(int64_t)>;
using ParallelFor = void (*)(int64_t tasks, const Body& body);

struct Context {
  ParallelFor parallel_for;
  int64_t threads;
};

template <class T>
using Kernels = KernelTable<T, Context>;

template <class T>
const Kernels<T>& kernels(int64_t lanes = 0);

}  // namespace lapkernels
