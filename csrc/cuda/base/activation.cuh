// Squared derivatives of elementwise activations.
#pragma once

#include "numbers.cuh"

namespace lapkernels::cuda {

template <class S>
__device__ S squared_slope(Activation kind, S z, S slope) {
  S d = 1;
  switch (kind) {
    case Activation::identity:
      break;
    case Activation::given:
      d = z;
      break;
    case Activation::relu:
      d = z > 0 ? 1 : 0;
      break;
    case Activation::leaky_relu:
      d = z > 0 ? S(1) : slope;
      break;
    case Activation::elu:
      d = z > 0 ? S(1) : slope * exp(z);
      break;
    case Activation::tanh: {
      // 1 - tanh² = 4 e / (1 + e)², e = exp(-2|z|): no cancellation.
      const S e = exp(-2 * fabs(z));
      d = 4 * e / ((1 + e) * (1 + e));
      break;
    }
    case Activation::sigmoid: {
      const S e = exp(-fabs(z));
      d = e / ((1 + e) * (1 + e));
      break;
    }
    case Activation::softplus:
      d = 1 / (1 + exp(-slope * z));
      break;
    case Activation::silu: {
      const S s = 1 / (1 + exp(-z));
      d = s * (1 + z * (1 - s));
      break;
    }
    case Activation::gelu: {
      const S cdf = S(0.5) * (1 + erf(z * S(0.70710678118654752440)));
      d = cdf + z * S(0.39894228040143267794) * exp(S(-0.5) * z * z);
      break;
    }
    case Activation::tanh_of_result:
      d = 1 - z * z;
      break;
    case Activation::sigmoid_of_result:
      d = z * (1 - z);
      break;
  }
  return d * d;
}

}  // namespace lapkernels::cuda
