// One translation unit of the CUDA kernels, their launchers and their registration, to be compiled
// with -DLAPKERNELS_EMULATED: the ops appear in torch as lapkernels_emulated::*, for CPU tensors.
#include "../../csrc/ops/jacobian_gram.cpp"
#include "../../csrc/ops/jacobian_squared_dot.cpp"
#include "../../csrc/ops/jacobian_squared_sum.cpp"
#include "../../csrc/ops/kronecker_input.cpp"
#include "../../csrc/ops/kronecker_output.cpp"
#include "../../csrc/ops/parameter_lists.cpp"
#include "../../csrc/ops/squared_conv_input.cpp"
#include "../../csrc/ops/squared_conv_weight.cpp"
#include "../../csrc/ops/squared_derivative.cpp"
#include "../../csrc/ops/window_pull.cpp"
#include "../../csrc/ops/window_squared_sum.cpp"
