"""Brute force in float64 through autograd of the real module: what the ops must give.

Nothing here uses the package: padding, strides and groups are those of `torch.nn`.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch
from torch import Tensor
from torch.func import functional_call

from tests.ops.cases import Data, Layer

# A dense Jacobian of more entries is not formed.
_DENSE_ENTRIES = 4_000_000


@lru_cache(maxsize=4)
def columns(data: Data) -> tuple[Tensor, Tensor]:
    """G [V, N, *weight] and the bias's [V, N, O]: one vjp for each sample and column."""
    module = data.layer.module()
    weight, bias = module.weight, module.bias
    g_weight = torch.zeros(*data.s.shape[:2], *weight.shape, dtype=torch.float64)
    g_bias = torch.zeros(*data.s.shape[:2], *bias.shape, dtype=torch.float64)
    for n in range(data.x.shape[0]):
        output = module(data.x[n : n + 1].double())
        for v, cotangent in enumerate(data.s[:, n].double()):
            found = torch.autograd.grad(output, (weight, bias), cotangent[None], retain_graph=True)
            g_weight[v, n], g_bias[v, n] = found
    return g_weight, g_bias


@lru_cache(maxsize=4)
def squared_input(data: Data) -> Tensor:
    """m at the input: the squared entries of the layer's Jacobian, applied to m at the output."""
    layer, m = data.layer, data.m.double()
    inputs, outputs = layer.input_shape(1), layer.output_shape(1)
    module = layer.module()
    repeats = dict(layer.options).get("padding_mode", "zeros") != "zeros"
    if repeats or prod(inputs) * prod(outputs) <= _DENSE_ENTRIES:
        rows = prod(outputs)
        cotangents = torch.eye(rows, dtype=torch.float64).reshape(rows, *outputs[1:])
        jacobian = _vjp(module, data.weight.double(), layer.input_shape(rows), cotangents)
        return (m.flatten(1) @ jacobian.flatten(1).square()).reshape(data.x.shape)
    # Each input meets an output through one tap at most, so squares of weights do.
    return _vjp(module, data.weight.double().square(), tuple(data.x.shape), m)


def _vjp(
    module: torch.nn.Module, weight: Tensor, shape: tuple[int, ...], cotangents: Tensor
) -> Tensor:
    entry = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    output = functional_call(module, {"weight": weight}, (entry,))
    return torch.autograd.grad(output, entry, cotangents)[0]


@lru_cache(maxsize=4)
def patches(data: Data) -> Tensor:
    """X [N, groups, T, I / groups * K]: weights that are one in one place copy what it reads."""
    layer = data.layer
    features, groups = layer.channels[0] // layer.groups, layer.groups
    kernel = layer.module().weight.shape[2:]
    taps = features * kernel.numel()
    module = layer.module(outputs=groups * taps).requires_grad_(False)
    module.bias.zero_()
    single = torch.eye(taps, dtype=torch.float64).reshape(taps, features, *kernel)
    single = single.transpose(0, 1) if layer.is_transposed else single
    module.weight.copy_(single.repeat(groups, *[1] * (single.dim() - 1)))
    return per_position(module(data.x.double()), layer).mT


def squared_weight(data: Data) -> Tensor:
    """D of the weight: m on the squared patches."""
    layer = data.layer
    m = per_position(data.m.double(), layer)
    found = torch.einsum("ngot,ngtp->gop", m, patches(data).square())
    shape = data.weight.shape
    if not layer.is_transposed:
        return found.reshape(shape)
    return found.unflatten(2, (-1, shape[2:].numel())).transpose(1, 2).reshape(shape)


def per_position(tensor: Tensor, layer: Layer) -> Tensor:
    """[..., groups, O / groups, T] of a tensor at the output, whose last dims are one sample's."""
    lead = tensor.dim() - len(layer.output_shape(1)) + 1
    tensor = tensor.movedim(-1, lead) if layer.is_linear else tensor
    flat = tensor.reshape(*tensor.shape[: lead + 1], prod(tensor.shape[lead + 1 :]))
    return flat.unflatten(lead, (layer.groups, -1))


def input_factor(data: Data, reduce: bool, bias: bool) -> Tensor:
    """A of each group: sum of outer products of patches, or of their sums over positions."""
    rows = patches(data)
    if bias:
        rows = torch.cat([rows, torch.ones_like(rows[..., :1])], 3)
    rows = rows.sum(2, keepdim=True) if reduce else rows
    return (rows.mT @ rows).sum(0)


def output_factor(data: Data, reduce: bool) -> Tensor:
    """B of each group."""
    rows = per_position(data.s.double(), data.layer)
    rows = rows.sum(4, keepdim=True) if reduce else rows
    return (rows @ rows.mT).sum((0, 1))


def transposed_layer(data: Data) -> Tensor:
    """Wᵀ m at the input, in float64."""
    return _vjp(data.layer.module(), data.weight.double(), tuple(data.x.shape), data.m.double())


def weight_gradient(data: Data) -> Tensor:
    """The gradient of <s_0, layer(x)> in the weight, in float64."""
    module = data.layer.module()
    return torch.autograd.grad(module(data.x.double()), module.weight, data.s[0].double())[0]
