"""torch functions that are one op, with the translation of their arguments into the op's.

An entry returns None for a call that is not this one op; such a call is recorded op by op, with the
same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from lapkernels import ops
from lapkernels.curvature.recording import layers
from lapkernels.ops import serving
from lapkernels.rules.base.rule import Builder
from lapkernels.rules.recurrent import Recurrence, States, Turned

aten = torch.ops.aten
Arguments = tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Function:
    """A function of torch as an op.

    ``arguments`` is called as the function is and gives the op's arguments, or None. ``run``, of
    the op's arguments, is for ops with more results than the function returns, or faster ones;
    where the function returns ``all`` results they are a tuple. ``rule`` builds the rule of what
    is no op of torch.
    """

    name: str
    op: Any
    arguments: Callable[..., Arguments]
    run: Callable[..., tuple[Tensor, ...]] | None = None
    all: bool = False
    rule: Builder | None = None

    @classmethod
    def of(cls, op: Any, arguments: Callable[..., Arguments], **options: Any) -> Function:
        """A function that is an overload of an op."""
        return cls(op._schema.name, op, arguments, **options)


def _list(value: Any, dims: int) -> list[int]:
    """A size as a list, from one number for all dimensions or a sequence."""
    return [value] * dims if isinstance(value, int) else list(value)


def _convolution(dims: int) -> Callable[..., Arguments]:
    def arguments(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Arguments:
        if isinstance(padding, str) or input.dim() != dims + 2:
            return None
        sizes = [_list(value, dims) for value in (stride, padding, dilation)]
        return (input, weight, bias, *sizes, False, [0] * dims, groups)

    return arguments


def _transposed(dims: int) -> Callable[..., Arguments]:
    def arguments(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Arguments:
        if input.dim() != dims + 2:
            return None
        sizes = [_list(value, dims) for value in (stride, padding, dilation)]
        return (input, weight, bias, *sizes, True, _list(output_padding, dims), groups)

    return arguments


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Arguments:
    return (input, weight, bias) if input.dim() > 1 and weight.dim() == 2 else None


def _as_given(*arguments: Any) -> Arguments:
    return arguments


def _one(input: Tensor) -> Arguments:
    return (input,)


def _one_or_in_place(input: Tensor, inplace: bool = False) -> Arguments:
    return None if inplace else (input,)


def _leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Arguments:
    return None if inplace else (input, negative_slope)


def _elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Arguments:
    return None if inplace else (input, alpha)


def _hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Arguments:
    return None if inplace else (input, min_val, max_val)


def _relu6(input: Tensor, inplace: bool = False) -> Arguments:
    return None if inplace else (input, 0, 6)


def _selu(input: Tensor, inplace: bool = False) -> Arguments:
    # torch runs selu as an elu with this alpha and scale.
    return None if inplace else (input, 1.6732632423543772, 1.0507009873554805)


def _clamp(input: Tensor, min: Any = None, max: Any = None) -> Arguments:
    plain = all(isinstance(bound, (int, float, type(None))) for bound in (min, max))
    return (input, min, max) if plain else None


def _power(input: Any, exponent: Any) -> Arguments:
    plain = isinstance(input, Tensor) and isinstance(exponent, (int, float))
    return (input, exponent) if plain else None


def _pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Arguments:
    if mode == "constant":
        return (input, list(pad), mode, value or 0.0)
    # Whole images, as torch pads them by one op; circular padding takes several.
    whole = input.dim() == len(pad) // 2 + 2 and min(pad, default=0) >= 0
    return (input, list(pad), mode, None) if whole else None


def _softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Arguments:
    return (input, beta, threshold)


def _gelu(input: Tensor, approximate: str = "none") -> Arguments:
    return (input, approximate)


def _identity(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Arguments:
    return None if training or inplace else (input,)


def _two(input: Any, other: Any) -> Arguments:
    return (input, other)


def _reshaped(input: Tensor, *sizes: Any, **names: Any) -> Arguments:
    given = (*sizes, *names.values())
    return None if any(isinstance(value, (str, torch.dtype)) for value in given) else (input,)


def _transpose(input: Tensor, dim0: Any, dim1: Any) -> Arguments:
    return (input, dim0, dim1) if isinstance(dim0, int) and isinstance(dim1, int) else None


def _permute(input: Tensor, *dims: Any) -> Arguments:
    order = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    return (input, list(order)) if all(isinstance(d, int) for d in order) else None


def _joined(tensors: Sequence[Tensor], dim: Any = 0) -> Arguments:
    return (list(tensors), dim) if isinstance(dim, int) else None


def _softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Arguments:
    return None if dtype is not None or not isinstance(dim, int) else (input, dim, False)


def _over_dims(input: Tensor, dim: Any, keepdim: bool = False) -> Arguments:
    dims = [dim] if isinstance(dim, int) else dim
    whole = not dims or not all(isinstance(d, int) for d in dims)
    return None if whole else (input, list(dims), keepdim)


def _product(input: Tensor, other: Tensor) -> Arguments:
    return (input, other) if input.dim() == other.dim() == 2 else None


def _max_pool(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Arguments:
    if return_indices or input.dim() != 4:
        return None
    steps = kernel_size if stride is None else stride
    sizes = [_list(value, 2) for value in (kernel_size, steps, padding, dilation)]
    return (input, *sizes, ceil_mode)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Arguments:
    if attn_mask is not None or dropout_p or scale is not None or enable_gqa or not query.is_cpu:
        return None
    chosen = aten._fused_sdp_choice.default(query, key, value, None, 0.0, is_causal)
    fused = chosen == SDPBackend.FLASH_ATTENTION.value
    return (query, key, value, 0.0, is_causal) if fused else None


def _run_attention(*arguments: Any) -> tuple[Tensor, ...]:
    *operands, dropout, causal = arguments
    dense = [one if one.stride(-1) == 1 else one.contiguous() for one in operands]
    return aten._scaled_dot_product_flash_attention_for_cpu.default(*dense, dropout, causal)


def _run_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    # Of strided sequences torch takes other products, with other last bits, for a gradient.
    return (F.linear(x.contiguous() if x.dim() > 2 else x, weight, bias),)


def _average_pool(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Arguments:
    if input.dim() != 4:
        return None
    steps = kernel_size if stride is None else stride
    sizes = [_list(value, 2) for value in (kernel_size, steps, padding)]
    return (input, *sizes, ceil_mode, count_include_pad, divisor_override)


def _global_average_pool(input: Tensor, output_size: Any) -> Arguments:
    ones = output_size in (1, (1, 1), [1, 1])
    return (input, [-1, -2], True) if ones and input.dim() == 4 else None


def _mean_of_last(input: Tensor, output_size: Any) -> Arguments:
    ones = output_size in (1, (1,), [1])
    return (input, [-1], True) if ones and input.dim() == 3 else None


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Arguments:
    if input.dim() < 3 or not input.is_contiguous():
        return None
    count, channels, *size = input.shape
    return (input, weight, bias, count, channels, prod(size), num_groups, eps)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Arguments:
    if training or running_mean is None or running_var is None:
        return None
    return (input, weight, bias, running_mean, running_var, False, momentum, eps)


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Arguments:
    return (input, list(normalized_shape), weight, bias, eps)


def _nearest(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Arguments:
    plain = mode == "nearest" and size is None and isinstance(scale_factor, (int, float))
    if not plain or recompute_scale_factor or input.dim() != 4:
        return None
    scale = float(scale_factor)
    return (input, [int(length * scale) for length in input.shape[2:]], scale, scale)


def _run_nearest(x: Tensor, size: Sequence[int], scale: float, _: float) -> tuple[Tensor, ...]:
    # Copying side by side is faster than torch's gather.
    copies = int(scale)
    stacked = copies == scale and copies > 1 and serving.copies_stacked(copies)
    if stacked and x.is_cpu and x.is_contiguous():
        for dim in (3, 2):
            x = torch.stack([x] * copies, dim + 1).flatten(dim, dim + 1)
        return (x,)
    return (aten.upsample_nearest2d.default(x, size, scale, scale),)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Arguments:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None
    row = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return (weight, input, row, False, False)


_UNARY = (
    *("relu", "sigmoid", "exp", "log", "sqrt", "rsqrt", "square", "abs", "sin", "cos"),
    *("neg", "reciprocal", "tanh"),
)
_BINARY = {"add": aten.add.Tensor, "sub": aten.sub.Tensor, "mul": aten.mul.Tensor}
_BINARY["div"] = aten.div.Tensor
_RESHAPES = ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze")


def _layers() -> dict[Any, Function]:
    """Functions of ``torch.nn.functional``."""
    convolution = aten.convolution.default
    table: dict[Any, Function] = {
        F.linear: Function.of(aten.linear.default, _linear, run=_run_linear),
        F.relu: Function.of(aten.relu.default, _one_or_in_place),
        F.silu: Function.of(aten.silu.default, _one_or_in_place),
        F.leaky_relu: Function.of(aten.leaky_relu.default, _leaky_relu),
        F.elu: Function.of(aten.elu.default, _elu),
        F.hardtanh: Function.of(aten.hardtanh.default, _hardtanh),
        F.relu6: Function.of(aten.hardtanh.default, _relu6),
        F.hardswish: Function.of(aten.hardswish.default, _one_or_in_place),
        F.hardsigmoid: Function.of(aten.hardsigmoid.default, _one_or_in_place),
        F.mish: Function.of(aten.mish.default, _one_or_in_place),
        F.selu: Function.of(aten.elu.default, _selu),
        F.celu: Function.of(aten.celu.default, _elu),
        F.pad: Function.of(aten.pad.default, _pad),
        F.softplus: Function.of(aten.softplus.default, _softplus),
        F.gelu: Function.of(aten.gelu.default, _gelu),
        F.softmax: Function.of(aten._softmax.default, _softmax),
        F.log_softmax: Function.of(aten._log_softmax.default, _softmax),
        F.max_pool2d: Function.of(
            aten.max_pool2d_with_indices.default, _max_pool, run=ops.max_pool2d
        ),
        F.avg_pool2d: Function.of(aten.avg_pool2d.default, _average_pool),
        F.adaptive_avg_pool2d: Function.of(aten.mean.dim, _global_average_pool),
        F.adaptive_avg_pool1d: Function.of(aten.mean.dim, _mean_of_last),
        F.group_norm: Function.of(
            aten.native_group_norm.default, _group_norm, run=torch.native_group_norm
        ),
        F.batch_norm: Function.of(aten.native_batch_norm.default, _batch_norm),
        F.layer_norm: Function.of(
            aten.native_layer_norm.default, _layer_norm, run=torch.native_layer_norm
        ),
        F.scaled_dot_product_attention: Function.of(
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            _attention,
            run=_run_attention,
        ),
        F.interpolate: Function.of(aten.upsample_nearest2d.default, _nearest, run=_run_nearest),
        F.embedding: Function.of(aten.embedding.default, _embedding),
    }
    for name, function, rule in (
        ("states", layers.states, States),
        ("projected", layers.projected_inputs, States),
        ("recurrence", layers.recurrence, Recurrence),
        ("turned", layers.turned_steps, Turned),
    ):
        own = {"run": function, "all": True, "rule": rule}
        table[function] = Function(f"lapkernels::{name}", function, _as_given, **own)
    for dropout in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d):
        table[dropout] = Function.of(aten.alias.default, _identity)
    for dims, (plain, transposed) in enumerate(
        (
            (F.conv1d, F.conv_transpose1d),
            (F.conv2d, F.conv_transpose2d),
            (F.conv3d, F.conv_transpose3d),
        ),
        start=1,
    ):
        table[plain] = Function.of(convolution, _convolution(dims))
        table[transposed] = Function.of(convolution, _transposed(dims))
    return table


def _functions() -> dict[Any, Function]:
    table = _layers()
    table[Tensor.t] = Function.of(aten.t.default, _one)
    table[Tensor.contiguous] = Function.of(aten.clone.default, _one)
    for space in (torch, Tensor):
        for name in _UNARY:
            table[getattr(space, name)] = Function.of(getattr(aten, name).default, _one)
        for name, op in _BINARY.items():
            table[getattr(space, name)] = Function.of(op, _two)
        for name in _RESHAPES:
            if hasattr(space, name):
                table[getattr(space, name)] = Function.of(aten.view.default, _reshaped)
        table[space.transpose] = Function.of(aten.transpose.int, _transpose)
        table[space.permute] = Function.of(aten.permute.default, _permute)
        table[space.matmul] = Function.of(aten.mm.default, _product)
        table[space.mm] = Function.of(aten.mm.default, _product)
        table[space.mean] = Function.of(aten.mean.dim, _over_dims)
        table[space.sum] = Function.of(aten.sum.dim_IntList, _over_dims)
        table[space.clamp] = Function.of(aten.clamp.default, _clamp)
        table[space.pow] = Function.of(aten.pow.Tensor_Scalar, _power)
    table[Tensor.__matmul__] = table[torch.matmul]
    table[Tensor.__pow__] = table[torch.pow]
    table[torch.cat] = Function.of(aten.cat.default, _joined)
    table[torch.stack] = Function.of(aten.stack.default, _joined)
    return table


FUNCTIONS = _functions()


def _answers(*names: str) -> frozenset[Any]:
    return frozenset(getattr(Tensor, name).__get__ for name in names)


# Functions that make views or constants: recorded op by op, and repeated by calling them.
VIEW = Function("", None, _as_given)
VIEWS = frozenset(
    {
        *(torch.zeros, torch.ones, torch.full, torch.arange, torch.flip, Tensor.flip),
        *(Tensor.__getitem__, Tensor.expand, Tensor.narrow, torch.narrow, Tensor.select),
        *(torch.chunk, Tensor.chunk, torch.split, Tensor.split, torch.unbind, Tensor.unbind),
        *(torch.movedim, Tensor.movedim, Tensor.swapaxes, torch.swapaxes, Tensor.expand_as),
    }
) | _answers("mT", "T")


def is_view(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call gives views or constants, by arguments that can be compared."""
    return func in VIEWS and _is_plain([*args[1:], *kwargs.values()])


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, slice):
        return all(one is None or type(one) is int for one in (value.start, value.stop, value.step))
    kinds = (int, float, str, torch.dtype, torch.device)
    return value is None or value is Ellipsis or isinstance(value, kinds)


# Queries that make no tensor; without a graph some answers differ.
QUESTIONS_WITHOUT_GRAPH = frozenset(
    {
        *(Tensor.dim, Tensor.size, Tensor.numel, Tensor.stride, Tensor.is_contiguous),
        *(Tensor.is_floating_point, Tensor.is_complex, Tensor.element_size, Tensor.__len__),
        *_answers("shape", "dtype", "device", "ndim", "is_nested", "layout", "is_cuda"),
    }
)
QUESTIONS = QUESTIONS_WITHOUT_GRAPH | _answers("requires_grad")
