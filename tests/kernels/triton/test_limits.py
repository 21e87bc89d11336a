"""Sizes beyond any test's memory: what kernels would be launched with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from lapkernels.kernels import triton
from tests.ops.operations import OPERATIONS

if triton.absent() is not None:
    pytest.skip(f"no Triton kernels: {triton.absent()}", allow_module_level=True)

import triton.language as tl  # noqa: E402

from lapkernels.kernels.triton import parameter_lists  # noqa: E402
from lapkernels.kernels.triton.launch import MOST_PROGRAMS, Grid, Kernel, within_limits  # noqa: E402
from tests.kernels.triton.test_launch import CHOSEN  # noqa: E402

# Arguments of ops for one huge layer each: many samples, many columns, many positions.
CONV = ([3, 3], [1, 1], [1, 1], [1, 1], 1)


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def layer(columns: int, samples: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    grid = (side, side)
    return empty(columns, samples, 4, *grid), empty(1, samples, 4, *grid), empty(4, 4, 3, 3)


def jacobian(columns: int, samples: int, side: int) -> list[Any]:
    return [*layer(columns, samples, side), *CONV]


HUGE = {
    "jacobian_squared_sum": [
        (empty(4, 36), *layer(*size)[:2], *CONV)
        for size in ((4, 70_000, 2), (70_000, 4, 2), (2, 4, 30_000))
    ],
    "jacobian_squared_dot": [
        (empty(size[1], size[0]), *jacobian(*size)) for size in ((4, 70_000, 2), (70_000, 4, 2))
    ],
    "jacobian_gram": [
        (empty(size[1], size[0], size[0]), *jacobian(*size))
        for size in ((4, 70_000, 2), (10_000, 2, 2), (1000, 3000, 2))
    ],
    "kronecker_input": [
        (empty(1, 36, 36), empty(70_000, 4, 2, 2), [2, 2], *CONV, False, reduce, False)
        for reduce in (False, True)
    ],
    "kronecker_output": [
        (empty(1, 4, 4), empty(70, 1001, 4, 2, 2), 1, reduce) for reduce in (False, True)
    ],
    "squared_conv_weight": [
        (empty(4, 4, 3, 3), *layer(1, 70_000, 200)[:2], *CONV, False),
    ],
    "squared_conv_input": [
        (empty(n, 4, side, side), empty(n, 4, side, side), empty(4, 4, 3, 3), [side, side],
         *CONV[1:], False, None, "identity", 0.0)
        for n, side in ((70_000, 2), (70_000, 200))
    ],
}  # fmt: skip


def test_every_op_with_tiles_is_here() -> None:
    assert {name.partition("-")[0] for name in CHOSEN} == set(HUGE)
    assert {operation.name.partition("-")[0] for operation in OPERATIONS} >= set(HUGE)


@pytest.mark.parametrize(
    ("op", "arguments"), [(op, arguments) for op, cases in HUGE.items() for arguments in cases]
)
def test_launches_of_huge_problems(
    op: str, arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grids are within a device's limits, and offsets beyond 32 bits are of 64."""
    launched = 0

    def tensors(value: Any) -> list[Tensor]:
        if isinstance(value, Tensor):
            return [value]
        return [t for part in value for t in tensors(part)] if isinstance(value, tuple) else []

    def launch(kernel: Kernel, grid: Grid, **named: Any) -> None:
        nonlocal launched
        launched += 1
        for tile in {*kernel.nvidia, *kernel.amd}:
            constants: Mapping[str, Any] = {**named, **tile.constants}
            programs = grid(constants)
            limits = zip(programs, MOST_PROGRAMS, strict=False)
            assert all(count <= most for count, most in limits), (kernel.function, programs)
        entries = max(tensor.numel() for tensor in tensors(tuple(named.values())))
        assert named["INDEX"] is (tl.int64 if entries >= 2**31 else tl.int32)

    monkeypatch.setattr(triton, "interpreted", lambda: True)
    monkeypatch.setattr(Kernel, "launch", launch)
    run = triton.triton_op(op)
    assert run is not None
    out, *rest = arguments
    run(out, 0.0, 1.0, *rest)
    assert launched >= (1 if op == "squared_conv_input" else 2)


def test_a_grid_beyond_the_limits_is_refused() -> None:
    assert within_limits(lambda constants: (2**31 - 1, 65535))({}) == (2**31 - 1, 65535)
    with pytest.raises(RuntimeError, match="beyond a device's"):
        within_limits(lambda constants: (1, 65536))({})


def test_table_of_lists() -> None:
    """A row for each block: addresses in each list, and how many entries it has."""
    block = parameter_lists._BLOCK
    sizes = (3, 2 * block + 5, 0, block)
    rows = parameter_lists._rows([(100, 1000, 7, 9000), (200, 2000, 7, 8000)], sizes, 4)
    assert rows.tolist() == [
        [100, 200, 3],
        [1000, 2000, block],
        [1000 + 4 * block, 2000 + 4 * block, block],
        [1000 + 8 * block, 2000 + 8 * block, 5],
        [9000, 8000, block],
    ]


@pytest.mark.gpu
def test_lists_are_captured_in_a_graph() -> None:
    """No copy of a table waits for the device, nor reads memory that is gone at a replay."""
    from lapkernels import ops, use_backend

    h, d = ([torch.ones(n, device="cuda") for n in (3, 20_000)] for _ in range(2))
    with use_backend("triton"):
        ops.precision_update(h, d, 0.5, 1.0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ops.precision_update(h, d, 0.5, 1.0)
        for entry in h:
            entry.fill_(2.0)
        graph.replay()
        graph.replay()
    for entry in h:
        assert torch.equal(entry, torch.full_like(entry, 2.0))
