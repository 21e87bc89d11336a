// All kernels for one instruction set. isa_*.cpp define LAPKERNELS_ISA (a namespace) and the
// vector's bytes and registers, turn the instruction set on, and include this file once.

namespace lapkernels::LAPKERNELS_ISA {

// In the order of use: later files build on earlier ones.
#include "simd.h"
#include "planes.h"
#include "tiles.h"
#include "correlation.h"
#include "point_transform.h"
#include "tile_side.h"
#include "tile_transform.h"
#include "line_shape.h"
#include "line_windows.h"
#include "tile_lines.h"
#include "tile_rows.h"
#include "lanes.h"
#include "columns.h"
#include "block_maker.h"
#include "jacobian_squared_sum.h"
#include "jacobian_squared_dot.h"
#include "jacobian_gram.h"
#include "squared_conv_weight.h"
#include "conv_weight.h"
#include "activation.h"
#include "squared_derivative.h"
#include "conv_streams.h"
#include "convolve_rows.h"
#include "convolve_lanes.h"
#include "convolve.h"
#include "squared_conv_input.h"
#include "conv_input.h"
#include "linear_rows.h"
#include "layer_chain.h"
#include "max_pool.h"
#include "scaled_product.h"
#include "tanh.h"
#include "run_layers.h"
#include "window_lanes.h"
#include "window_pull.h"
#include "window_squared_sum.h"
#include "sparse_columns.h"
#include "sparse_squared_sum.h"
#include "sparse_conv_input.h"
#include "second_moment.h"
#include "kronecker_output.h"
#include "lag_moment.h"
#include "kronecker_input.h"
#include "parameter_lists.h"

template <class T>
const Kernels<T> table = {
    LAPKERNELS_ISA_NAME,
    &jacobian_squared_sum<T>,
    &jacobian_squared_dot<T>,
    &jacobian_gram<T>,
    &squared_conv_weight<T>,
    &squared_conv_input<T>,
    &kronecker_input<T>,
    &kronecker_output<T>,
    &squared_derivative<T>,
    &gaussian_kl<T>,
    &squared_gradient_sum<T>,
    &precision_update<T>,
    &sample_from_precision<T>,
    &window_squared_sum<T>,
    &window_pull<T>,
    &sparse_squared_sum<T>,
    &sparse_conv_input<T>,
    &conv_input<T>,
    &conv_weight<T>,
    &layer_chain<T>,
    &scaled_product<T>,
    &tanh<T>,
    &max_pool<T>,
    &run_layers<T>,
};

const Kernels<float>& float_table() { return table<float>; }
const Kernels<double>& double_table() { return table<double>; }

}  // namespace lapkernels::LAPKERNELS_ISA
