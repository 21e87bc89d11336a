"""The ops on a layer in one table: how to call each, its brute force, and what it adds up."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Any

import torch
from torch import Tensor

from lapkernels import ops, use_backend
from tests.ops import oracle
from tests.ops.cases import Data

# Roundings of an entry beside its additions: products, the scale, and the decay.
_ROUNDINGS = 6


@dataclass(frozen=True, repr=False)
class Operation:
    """An op on a layer.

    `run(data, **keywords)` is the public function and `brute(data)` the answer in float64.
    `reads` names its tensors; `sample_dim` is the samples' dimension in the result, None if summed.
    `summands(data)` bounds the longest chain of additions behind one entry.
    """

    name: str
    run: Callable[..., Tensor]
    brute: Callable[[Data], Tensor]
    reads: tuple[str, ...]
    summands: Callable[[Data], int]
    sample_dim: int | None = None
    has_out: bool = True

    def exact(self, data: Data) -> Tensor:
        """The reference in float64."""
        with use_backend("reference"):
            return self.run(data.map(torch.Tensor.double))

    def magnitude(self, data: Data) -> Tensor:
        """What every entry would be if no two of its terms cancelled."""
        return self.exact(data.map(torch.Tensor.abs))

    def tolerance(self, data: Data, dtype: torch.dtype) -> Tensor:
        """eps * number of summands * magnitude, entry by entry."""
        count = self.summands(data) + _ROUNDINGS
        return torch.finfo(dtype).eps * count * self.magnitude(data)


def _columns_chain(data: Data) -> int:
    """G twice, then samples and columns; or pairs of positions first, if those are few."""
    columns, samples = data.s.shape[:2]
    positions = data.layer.positions
    return 2 * positions + samples * columns + positions * min(positions, columns)


def _column_chain(data: Data) -> int:
    """G twice, then all parameters."""
    positions = data.layer.positions
    return 2 * positions + data.weight.numel() + positions * min(positions, data.s.shape[0])


def _output_positions(data: Data) -> int:
    return data.m.numel() // max(1, data.m.shape[0] * data.layer.channels[1])


def _bias_chain(data: Data) -> int:
    return 2 * _output_positions(data) + prod(data.s.shape[:2]) + data.layer.channels[1]


def _position_chain(data: Data) -> int:
    """Every position of every sample, and of every column if there are any."""
    return 2 * max(1, data.s.shape[0]) * data.x.shape[0] * _output_positions(data)


def _weight_taps(data: Data) -> int:
    """Twice the taps that meet one input, since a padding mode adds products of two taps."""
    return 2 * prod(data.weight.shape)


def _squared_input(data: Data, **keywords: Any) -> Tensor:
    layer = data.layer
    return ops.squared_conv_input(data.m, data.weight, layer.size, layer.geometry, **keywords)


def _kronecker_input(reduce: bool, bias: bool) -> dict[str, Any]:
    return {
        "run": lambda d, **k: ops.kronecker_input(
            d.x, d.layer.geometry, reduce=reduce, bias=bias, **k
        ),
        "brute": lambda d: oracle.input_factor(d, reduce, bias),
        "reads": ("x",),
        "summands": _position_chain,
    }


def _kronecker_output(reduce: bool) -> dict[str, Any]:
    return {
        "run": lambda d, **k: ops.kronecker_output(d.s, d.layer.geometry, reduce=reduce, **k),
        "brute": lambda d: oracle.output_factor(d, reduce),
        "reads": ("s",),
        "summands": _position_chain,
    }


def _gram(columns: Tensor, variance: Tensor) -> Tensor:
    flat = columns.flatten(2)
    return torch.einsum("vnp,p,wnp->nvw", flat, variance.double().flatten(), flat)


OPERATIONS: list[Operation] = [
    Operation("squared_conv_input", _squared_input, oracle.squared_input, ("m", "weight"),
        _weight_taps, sample_dim=0),
    Operation("squared_conv_input-given",
        lambda d, **k: _squared_input(d, z=d.z, activation="given", **k),
        lambda d: oracle.squared_input(d) * d.z.double().square(), ("m", "weight", "z"),
        _weight_taps, sample_dim=0),
    Operation("squared_conv_weight",
        lambda d, **k: ops.squared_conv_weight(d.m, d.x, d.layer.geometry, **k),
        oracle.squared_weight, ("m", "x"), _position_chain),
    Operation("squared_conv_bias", lambda d: ops.squared_conv_bias(d.m, d.layer.geometry),
        lambda d: oracle.per_position(d.m.double(), d.layer).sum((0, 3)).flatten(), ("m",),
        _position_chain, has_out=False),
    Operation("jacobian_squared_sum",
        lambda d, **k: ops.jacobian_squared_sum(d.s, d.x, d.layer.geometry, **k),
        lambda d: oracle.columns(d)[0].square().sum((0, 1)), ("s", "x"), _columns_chain),
    Operation("jacobian_squared_sum_bias",
        lambda d: ops.jacobian_squared_sum_bias(d.s, d.layer.geometry),
        lambda d: oracle.columns(d)[1].square().sum((0, 1)), ("s",), _bias_chain, has_out=False),
    Operation("jacobian_squared_dot",
        lambda d, **k: ops.jacobian_squared_dot(d.s, d.x, d.variance, d.layer.geometry, **k),
        lambda d: _gram(oracle.columns(d)[0], d.variance).diagonal(dim1=1, dim2=2),
        ("s", "x", "variance"), _column_chain, sample_dim=0),
    Operation("jacobian_squared_dot_bias",
        lambda d: ops.jacobian_squared_dot_bias(d.s, d.bias_variance, d.layer.geometry),
        lambda d: _gram(oracle.columns(d)[1], d.bias_variance).diagonal(dim1=1, dim2=2),
        ("s", "bias_variance"), _bias_chain, sample_dim=0, has_out=False),
    Operation("jacobian_gram",
        lambda d, **k: ops.jacobian_gram(d.s, d.x, d.variance, d.layer.geometry, **k),
        lambda d: _gram(oracle.columns(d)[0], d.variance), ("s", "x", "variance"), _column_chain,
        sample_dim=0),
    Operation("jacobian_gram_bias",
        lambda d: ops.jacobian_gram_bias(d.s, d.bias_variance, d.layer.geometry),
        lambda d: _gram(oracle.columns(d)[1], d.bias_variance), ("s", "bias_variance"), _bias_chain,
        sample_dim=0, has_out=False),
    Operation("kronecker_input", **_kronecker_input(reduce=False, bias=False)),
    Operation("kronecker_input-bias", **_kronecker_input(reduce=False, bias=True)),
    Operation("kronecker_input-reduce", **_kronecker_input(reduce=True, bias=False)),
    Operation("kronecker_input-reduce-bias", **_kronecker_input(reduce=True, bias=True)),
    Operation("kronecker_output", **_kronecker_output(reduce=False)),
    Operation("kronecker_output-reduce", **_kronecker_output(reduce=True)),
]  # fmt: skip

WITH_OUT = [operation for operation in OPERATIONS if operation.has_out]
PER_SAMPLE = [operation for operation in OPERATIONS if operation.sample_dim is not None]
SUMMED = [operation for operation in OPERATIONS if operation.sample_dim is None]


def each(operations: Sequence[Operation]) -> Any:
    """Decorates a test of ``operation`` so that it runs on all of the ops, one after the other.

    They are one item for pytest, which spends more on an item than most ops on a case.
    """
    assert operations, "no case would run"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            for operation in operations:
                try:
                    test(operation=operation, **fixtures)
                except Exception as error:
                    raise AssertionError(f"{operation.name}: {error}") from error

        signature = inspect.signature(test)
        kept = [p for name, p in signature.parameters.items() if name != "operation"]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate
