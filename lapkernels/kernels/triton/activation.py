"""The squared derivative of every activation, by name, from exponentials that cannot overflow."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(z):
    """1 / (1 + exp(-z)), by an exponential of -|z|."""
    e = tl.exp(-tl.abs(z))
    return tl.where(z >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


@triton.jit
def squared_slope(z, slope, NAME: tl.constexpr):
    """phi'(z)²; `slope` is LeakyReLU's slope, ELU's alpha or Softplus's beta."""
    if NAME == "given":
        d = z
    elif NAME == "relu":
        d = tl.where(z > 0, 1.0, 0.0).to(z.dtype)
    elif NAME == "leaky_relu":
        d = tl.where(z > 0, 1.0, slope).to(z.dtype)
    elif NAME == "elu":
        d = tl.where(z > 0, 1.0, slope * tl.exp(tl.minimum(z, 0.0)))
    elif NAME == "tanh":
        e = tl.exp(-2.0 * tl.abs(z))
        d = 4.0 * e / ((1.0 + e) * (1.0 + e))
    elif NAME == "sigmoid":
        d = sigmoid(z) * sigmoid(-z)
    elif NAME == "softplus":
        d = sigmoid(slope * z)
    elif NAME == "silu":
        d = sigmoid(z) * (1.0 + z * sigmoid(-z))
    elif NAME == "gelu":
        # 1 / sqrt(2) and 1 / sqrt(2 pi).
        bell = tl.exp(-0.5 * z * z) * 0.3989422804014327
        d = 0.5 * (1.0 + tl.erf(z * 0.7071067811865476)) + z * bell
    elif NAME == "tanh_of_result":
        d = 1.0 - z * z
    elif NAME == "sigmoid_of_result":
        d = z * (1.0 - z)
    else:
        tl.static_assert(NAME == "identity", "unknown activation")
        d = tl.full(z.shape, 1.0, z.dtype)
    return d * d
