// One translation unit of all CUDA kernels and their launchers, for a C++ compiler.
#include <dlfcn.h>

#include "../../csrc/cuda/product/finish.cu"
#include "../../csrc/cuda/jacobian_gram.cu"
#include "../../csrc/cuda/jacobian_squared_dot.cu"
#include "../../csrc/cuda/jacobian_squared_sum.cu"
#include "../../csrc/cuda/kronecker_input.cu"
#include "../../csrc/cuda/kronecker_output.cu"
#include "../../csrc/cuda/parameter_lists.cu"
#include "../../csrc/cuda/product/pull.cu"
#include "../../csrc/cuda/product/second_moment.cu"
#include "../../csrc/cuda/sparse_conv_input.cu"
#include "../../csrc/cuda/squared_conv_input.cu"
#include "../../csrc/cuda/squared_conv_weight.cu"
#include "../../csrc/cuda/squared_derivative.cu"
#include "../../csrc/cuda/table.cu"
#include "../../csrc/cuda/product/tile_sum.cu"
#include "../../csrc/cuda/window_pull.cu"
#include "../../csrc/cuda/window_squared_sum.cu"

// Symbols of the kernels launched since the last call, one a line; the caller has the text until
// then.
extern "C" const char* emulated_launches() {
  static std::string text;
  text.clear();
  for (void* kernel : emulator::launched) {
    Dl_info found;
    if (dladdr(kernel, &found) && found.dli_sname) text += std::string(found.dli_sname) + "\n";
  }
  emulator::launched.clear();
  return text.c_str();
}
