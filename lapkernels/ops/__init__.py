"""The kernel API: one file an op, with its formula, schema, reference and gradient."""

from lapkernels.ops.base.geometry import Geometry
from lapkernels.ops.base.registration import OPS
from lapkernels.ops.conv_input import conv_input
from lapkernels.ops.conv_weight import conv_weight
from lapkernels.ops.gaussian_kl import gaussian_kl
from lapkernels.ops.jacobian import jacobian
from lapkernels.ops.jacobian_gram import jacobian_gram, jacobian_gram_bias
from lapkernels.ops.jacobian_squared_dot import jacobian_squared_dot, jacobian_squared_dot_bias
from lapkernels.ops.jacobian_squared_sum import jacobian_squared_sum, jacobian_squared_sum_bias
from lapkernels.ops.kronecker_input import kronecker_input
from lapkernels.ops.kronecker_output import kronecker_output
from lapkernels.ops.layer_chain import ChainLayer, ChainSums, can_chain, layer_chain
from lapkernels.ops.max_pool import max_pool2d
from lapkernels.ops.precision_update import precision_update
from lapkernels.ops.sample_from_precision import sample_from_precision
from lapkernels.ops.scaled_product import scaled_product
from lapkernels.ops.sparse_conv_input import sparse_conv_input
from lapkernels.ops.sparse_squared_sum import skips_zeros, sparse_squared_sum
from lapkernels.ops.squared_conv_input import squared_conv_input
from lapkernels.ops.squared_conv_weight import squared_conv_bias, squared_conv_weight
from lapkernels.ops.squared_derivative import ACTIVATIONS, squared_derivative
from lapkernels.ops.squared_gradient_sum import squared_gradient_sum
from lapkernels.ops.unfolded import unfolded
from lapkernels.ops.value_samples import value_samples
from lapkernels.ops.window_pull import window_pull
from lapkernels.ops.window_squared_sum import window_squared_sum

__all__ = [
    "can_chain",
    "ACTIVATIONS",
    "ChainLayer",
    "ChainSums",
    "OPS",
    "Geometry",
    "conv_input",
    "conv_weight",
    "gaussian_kl",
    "jacobian",
    "jacobian_gram",
    "jacobian_gram_bias",
    "jacobian_squared_dot",
    "jacobian_squared_dot_bias",
    "jacobian_squared_sum",
    "jacobian_squared_sum_bias",
    "kronecker_input",
    "kronecker_output",
    "layer_chain",
    "max_pool2d",
    "precision_update",
    "sample_from_precision",
    "scaled_product",
    "skips_zeros",
    "sparse_conv_input",
    "sparse_squared_sum",
    "squared_conv_bias",
    "squared_conv_input",
    "squared_conv_weight",
    "squared_derivative",
    "squared_gradient_sum",
    "unfolded",
    "value_samples",
    "window_pull",
    "window_squared_sum",
]
