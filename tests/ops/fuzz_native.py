"""Calls the compiled ops with nonsense; run as a program, so that a crash is seen from outside.

    python -m tests.ops.fuzz_native SEED CALLS

Two kinds of calls alternate: arguments made up from the schema alone, and those of a real call with
a few of them spoilt. Either the op raises, or it writes to its output and nowhere else.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lapkernels import ops, use_backend
from lapkernels.kernels.native import native_op
from lapkernels.ops import OPS
from lapkernels.ops.base import registration
from lapkernels.ops.conv_input import CONV_INPUT
from tests.ops.cases import FEW, draw
from tests.ops.operations import WITH_OUT

SENTINEL = 77.0
MARGIN = 64
DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64]

# Recorded calls of each op, all valid.
Calls = dict[str, list[tuple[Any, ...]]]


def record() -> Calls:
    """Arguments with which the package itself calls the compiled ops."""
    calls: Calls = {name: [] for name in OPS}
    real: Callable[..., Any] = registration.compiled

    def recording(name: str, *tensors: Any, **keywords: Any) -> Any:
        kernel = real(name, *tensors, **keywords)

        def run(*arguments: Any) -> None:
            calls[name].append(arguments)
            kernel(*arguments)

        return run if kernel is not None else None

    registration.compiled = recording  # type: ignore[assignment]
    with use_backend("cpp"):
        for layer in FEW:
            for operation in WITH_OUT:
                operation.run(draw(layer, torch.float32))
        small, large = torch.rand(2, 4, 3, 5), torch.rand(1, 6, 7, 5)
        ops.window_squared_sum(small, large, [3], [2], [1], [0], 2)
        for transposed, s, size in ((False, small, [7]), (True, large, [3])):
            places = (size, [2], [1], [0], 2, transposed)
            ops.window_pull(s, torch.rand(4, 3, 3), *places)
        plain = ops.Geometry.conv(3, 2, 1, dims=1)
        x, weight = torch.rand(3, 5, 7), torch.rand(4, 5, 3)
        layer = ([2], [1], [1], 1, True)
        CONV_INPUT(x, weight, [4], *layer)
        ops.conv_weight(torch.rand(3, 4, 4), x, plain)
        step = ops.ChainLayer(plain, weight, x, z=x, activation="relu")
        rows = ops.ChainLayer(ops.Geometry(), torch.rand(4, 5), torch.rand(3, 5))
        ops.layer_chain([step], torch.rand(3, 4, 4))
        ops.layer_chain([rows], torch.rand(3, 4), torch.rand(3, 4), wants_input=False)
        ops.sparse_squared_sum(torch.rand(2, 3, 4, 4), torch.rand(3, 5, 7), plain)
        ops.sparse_conv_input(torch.rand(2, 3, 4, 4), torch.rand(4, 5, 3), [7], plain)
        numbers = [torch.rand(7) + 0.1, torch.rand(3, 2) + 0.1]
        ops.squared_derivative(numbers[0], numbers[0], "tanh")
        ops.scaled_product(numbers[1], numbers[1], numbers[1].T.contiguous())
        ops.gaussian_kl(numbers, numbers, 0.5)
        ops.squared_gradient_sum(numbers, numbers)
        ops.precision_update([n.clone() for n in numbers], numbers, 0.5)
        ops.sample_from_precision(numbers, numbers)
    registration.compiled = real
    assert all(calls.values()), "an op was never called"
    return calls


def some_int(rng: random.Random) -> int:
    wild = [-(2**63), -(2**31), -7, 2**31, 2**32 + 1, 2**62, 2**63 - 1]
    return rng.choice(wild) if rng.random() < 0.15 else rng.randint(-2, 6)


def some_tensor(rng: random.Random) -> Tensor:
    dtype = DTYPES[0] if rng.random() < 0.7 else rng.choice(DTYPES)
    shape = [rng.randint(0, 5) for _ in range(rng.randint(0, 7))]
    tensor = torch.ones(shape).to(dtype)
    kind = rng.random()
    if kind < 0.1:
        return tensor.to("meta")
    if kind < 0.2 and shape:
        return tensor[:1].expand(shape)
    if kind < 0.3:
        return tensor.T if len(shape) == 2 else tensor.flatten()
    if kind < 0.35 and len(shape) == 2:
        return tensor.to_sparse()
    return tensor


def some_value(kind: str, rng: random.Random) -> Any:
    """A value of the schema's type, with no regard to what the op needs."""
    if kind.startswith("Optional"):
        return None if rng.random() < 0.5 else some_tensor(rng)
    makers: dict[str, Callable[[], Any]] = {
        "Tensor": lambda: some_tensor(rng),
        "List[Tensor]": lambda: [some_tensor(rng) for _ in range(rng.randint(0, 3))],
        "List[int]": lambda: [some_int(rng) for _ in range(rng.randint(0, 4))],
        "List[float]": lambda: [rng.choice([0.0, 1.0]) for _ in range(rng.randint(0, 3))],
        "int": lambda: some_int(rng),
        "float": lambda: rng.choice([0.0, 1.0, -1.0, 0.5, float("nan"), float("inf"), 1e300]),
        "bool": lambda: rng.random() < 0.5,
        "str": lambda: rng.choice(["tanh", "relu", "given", "", "no such thing", "x" * 1000]),
    }
    return makers[kind]()


def spoilt(value: Any, kind: str, rng: random.Random) -> Any:
    """A value that was right, with something about it changed."""
    if isinstance(value, Tensor) and value.dim() and rng.random() < 0.7:
        dim = rng.randrange(value.dim())
        changes: list[Callable[[], Tensor]] = [
            lambda: value.narrow(dim, 0, value.shape[dim] // 2),
            lambda: value.repeat_interleave(2, dim),
            lambda: value.squeeze(0),
            lambda: value.unsqueeze(dim),
            lambda: value.transpose(0, dim),
            lambda: value.double(),
            lambda: value.flatten(),
        ]
        return rng.choice(changes)()
    if isinstance(value, list) and value and isinstance(value[0], int) and rng.random() < 0.7:
        index = rng.randrange(len(value))
        return [some_int(rng) if i == index else entry for i, entry in enumerate(value)]
    return some_value(kind, rng)


class Canary:
    """A copy of an output with a margin that must keep its content."""

    def __init__(self, like: Tensor) -> None:
        self.block = torch.full((like.numel() + 2 * MARGIN,), SENTINEL, dtype=like.dtype)
        self.view = self.block[MARGIN : MARGIN + like.numel()].view(like.shape)

    def assert_alive(self) -> None:
        assert (self.block[:MARGIN] == SENTINEL).all() and (self.block[-MARGIN:] == SENTINEL).all()


def guarded(value: Any, canaries: list[Canary]) -> Any:
    if isinstance(value, list):
        return [guarded(entry, canaries) for entry in value]
    plain = isinstance(value, Tensor) and value.layout == torch.strided and value.is_cpu
    if not plain or not value.is_floating_point() or not value.is_contiguous():
        return value
    canaries.append(Canary(value))
    return canaries[-1].view.copy_(value)


def fuzz(seed: int, count: int) -> Counter[str]:
    rng, calls, outcomes = random.Random(seed), record(), Counter[str]()
    for index in range(count):
        name = rng.choice(list(OPS))
        kernel: Any = native_op(name)
        schema = kernel._schema.arguments
        kinds = [str(argument.type) for argument in schema]
        if index % 2:
            values = [some_value(kind, rng) for kind in kinds]
        else:
            values = list(rng.choice(calls[name]))
            for chosen in rng.sample(range(len(values)), rng.randint(1, 2)):
                values[chosen] = spoilt(values[chosen], kinds[chosen], rng)
        # So many positions of an honest size would only take long.
        for i, argument in enumerate(schema):
            if argument.name == "output_size":
                values[i] = [min(entry, 64) for entry in values[i]]
        canaries: list[Canary] = []
        values[0] = guarded(values[0], canaries)
        # What a crash would leave behind.
        print(name, [_brief(value) for value in values], file=sys.stderr)
        try:
            kernel(*values)
            outcomes["accepted"] += 1
        except (RuntimeError, NotImplementedError):
            outcomes["refused"] += 1
        for canary in canaries:
            canary.assert_alive()
    return outcomes


def _brief(value: Any) -> Any:
    if isinstance(value, Tensor):
        return f"{value.dtype}{list(value.shape)}@{value.device}"
    return [_brief(entry) for entry in value] if isinstance(value, list) else value


if __name__ == "__main__":
    print(dict(fuzz(int(sys.argv[1]), int(sys.argv[2]))))
