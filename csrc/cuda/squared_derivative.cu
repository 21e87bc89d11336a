#include "squared_derivative.cuh"

#include "base/launch.h"
#include "ops.h"

namespace lapkernels::cuda {

template <class T>
void squared_derivative(const Context& context, T* out, Update update, const T* m, const T* z,
                        int64_t size, Activation activation, double slope) {
  const SquaredDerivative<T> task{out,
                                  m,
                                  z,
                                  size,
                                  is_vector(out) && is_vector(m) && is_vector(z),
                                  activation,
                                  static_cast<SumOf<T>>(slope),
                                  blend<T>(update)};
  launch(context, squared_derivative_kernel<T>, ceil_div(size, 4 * kPointThreads), kPointThreads,
         task);
}

LAPKERNELS_INSTANCES(squared_derivative)

}  // namespace lapkernels::cuda
