// The table of CUDA kernels. Columns that share their zeros go through the dense product.
#include "product/finish.cuh"
#include "ops.h"

namespace lapkernels::cuda {

template <class T>
const Kernels<T>& kernels() {
  static const Kernels<T> table = {
      "cuda",
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
      &jacobian_squared_sum<T>,
      &sparse_conv_input<T>,
      nullptr,  // from conv_input on: torch's library serves GPUs
      nullptr,
      nullptr,
      nullptr,
  };
  return table;
}

template const Kernels<float>& kernels<float>();
template const Kernels<double>& kernels<double>();
template const Kernels<Half>& kernels<Half>();
template const Kernels<BFloat16>& kernels<BFloat16>();

const char* why_not() {
#ifdef __CUDACC__
  cudaFuncAttributes found;
  const cudaError_t error = cudaFuncGetAttributes(&found, finish_kernel<float>);
  if (error != cudaSuccess) {
    cudaGetLastError();  // or the next launch would raise it
    return cudaGetErrorString(error);
  }
#endif
  return "";
}

const char* kernel_names() {
  return "jacobian_squared_sum jacobian_squared_dot jacobian_gram squared_conv_weight "
         "squared_conv_input kronecker_input kronecker_output squared_derivative gaussian_kl "
         "squared_gradient_sum precision_update sample_from_precision window_squared_sum "
         "window_pull sparse_squared_sum sparse_conv_input";
}

}  // namespace lapkernels::cuda
