"""Tensors whose entries lie more than 2^31 elements apart.

The memory between them is never touched, so a few pages are all that is used.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lapkernels.kernels.triton import MODULES
from tests.ops.cases import Layer, draw, over
from tests.ops.compare import assert_same
from tests.ops.operations import OPERATIONS, WITH_OUT, Operation, each

APART = 2**31 + 5
LAYERS = [
    Layer("linear", (3, 2), (), 2, 2),
    Layer("conv1d", (2, 3), (9,), 2, 2, (("kernel_size", 3), ("padding", 1))),
    Layer("conv2d", (2, 2), (4, 5), 2, 2, (("kernel_size", 3), ("stride", 2), ("padding", 1))),
    Layer("conv_transpose1d", (2, 2), (5,), 2, 2, (("kernel_size", 3), ("stride", 2))),
]


@pytest.fixture(scope="module")
def reserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tensor]:
    """Room for two entries so far apart: a file with a hole, of which a few pages exist."""
    path = tmp_path_factory.mktemp("huge") / "hole"
    yield torch.from_file(str(path), shared=True, size=APART + 4096)
    path.unlink()


def _spread(tensor: Tensor, dim: int, reserve: Tensor) -> Tensor:
    """A copy whose first two entries along `dim` are far apart."""
    assert tensor.shape[dim] == 2
    rest = tensor.movedim(dim, 0)
    inner = rest[0].contiguous()
    view = reserve.as_strided(rest.shape, (APART, *inner.stride()))
    return view.copy_(rest).movedim(0, dim)


@each(OPERATIONS)
@over(LAYERS)
@pytest.mark.usefixtures("backend")
def test_input_far_apart(operation: Operation, layer: Layer, reserve: Tensor) -> None:
    _check_inputs(operation, layer, reserve)


@each([operation for operation in OPERATIONS if operation.name in MODULES])
@over(LAYERS[2:3])
@pytest.mark.usefixtures("interpreted")
def test_input_far_apart_in_triton(operation: Operation, layer: Layer, reserve: Tensor) -> None:
    _check_inputs(operation, layer, reserve)


def _check_inputs(operation: Operation, layer: Layer, reserve: Tensor) -> None:
    data = draw(layer, torch.float32, integers=True)
    wanted = operation.brute(data)
    ran = 0
    for name in operation.reads:
        for dim, size in enumerate(getattr(data, name).shape):
            if size == 2:
                far = data.map(lambda t, dim=dim: _spread(t, dim, reserve), name)
                assert_same(operation.run(far), wanted)
                ran += 1
    assert ran, "no case ran"


@each(WITH_OUT)
@over(LAYERS)
@pytest.mark.usefixtures("backend")
def test_output_far_apart(operation: Operation, layer: Layer, reserve: Tensor) -> None:
    data = draw(layer, torch.float32, integers=True)
    wanted = operation.brute(data)
    for dim, size in enumerate(wanted.shape):
        if size == 2:
            out = _spread(torch.full(wanted.shape, 4.0), dim, reserve)
            operation.run(data, out=out, decay=0.5)
            assert_same(out, 2.0 + wanted)
