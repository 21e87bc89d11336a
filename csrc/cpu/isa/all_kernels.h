// All kernels for one instruction set, each of whose files is included here alone, inside a
// namespace. The .cpp files beside this one define LAPKERNELS_ISA (a namespace), the bytes of a
// vector and LAPKERNELS_TUNING (the machine's constants), turn the instruction set on, and include
// this file once.

namespace lapkernels::LAPKERNELS_ISA {

// In the order of use: later files build on earlier ones.
#include "simd.h"
#include LAPKERNELS_TUNING
#include "../pack/axes.h"
#include "../pack/transpose.h"
#include "../pack/padded.h"
#include "../tile/choose.h"
#include "../tile/outer.h"
#include "../tile/dot.h"
#include "../weight_gradient/problem.h"
#include "../weight_gradient/rows_in_lanes.h"
#include "../weight_gradient/positions_in_lanes.h"
#include "../weight_gradient/direct.h"
#include "../winograd/transforms.h"
#include "../winograd/operand.h"
#include "../winograd/gradient.h"
#include "../weight_gradient/choose.h"
#include "../weight_gradient/partition.h"
#include "../weight_gradient/weights.h"
#include "../weight_gradient/reduce.h"
#include "../ops/jacobian_squared_sum.h"
#include "../ops/jacobian_squared_dot.h"
#include "../ops/jacobian_gram.h"
#include "../ops/squared_conv_weight.h"
#include "../ops/conv_weight.h"
#include "../convolution/activation.h"
#include "../ops/squared_derivative.h"
#include "../convolution/epilogue.h"
#include "../convolution/convolve.h"
#include "../ops/squared_conv_input.h"
#include "../ops/conv_input.h"
#include "../convolution/linear_rows.h"
#include "../ops/layer_chain.h"
#include "../ops/max_pool.h"
#include "../ops/scaled_product.h"
#include "../windows/lanes.h"
#include "../ops/window_pull.h"
#include "../ops/window_squared_sum.h"
#include "../sparse/columns.h"
#include "../ops/sparse_squared_sum.h"
#include "../ops/sparse_conv_input.h"
#include "../second_moments/second_moment.h"
#include "../ops/kronecker_output.h"
#include "../second_moments/lag_moment.h"
#include "../ops/kronecker_input.h"
#include "../ops/parameter_lists.h"

template <class T>
const Kernels<T> table = {
    LAPKERNELS_ISA_NAME,       &jacobian_squared_sum<T>,
    &jacobian_squared_dot<T>,  &jacobian_gram<T>,
    &squared_conv_weight<T>,   &squared_conv_input<T>,
    &kronecker_input<T>,       &kronecker_output<T>,
    &squared_derivative<T>,    &gaussian_kl<T>,
    &squared_gradient_sum<T>,  &precision_update<T>,
    &sample_from_precision<T>, &window_squared_sum<T>,
    &window_pull<T>,           &sparse_squared_sum<T>,
    &sparse_conv_input<T>,     &conv_input<T>,
    &conv_weight<T>,           &layer_chain<T>,
    &scaled_product<T>,        &max_pool<T>,
};

template <class T>
const Kernels<T>& table_of() {
  return table<T>;
}
template const Kernels<float>& table_of<float>();
template const Kernels<double>& table_of<double>();

}  // namespace lapkernels::LAPKERNELS_ISA
