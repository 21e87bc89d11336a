"""The tiles a kernel may take, and how one is chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lapkernels.kernels import triton
from tests.ops.cases import FEW, draw
from tests.ops.compare import assert_same
from tests.ops.operations import OPERATIONS

if triton.absent() is not None:
    pytest.skip(f"no Triton kernels: {triton.absent()}", allow_module_level=True)

from lapkernels.kernels.triton.launch import Grid, Kernel, split_count  # noqa: E402

pytestmark = pytest.mark.usefixtures("forced")

# One op for each kernel that has tiles to choose from.
CHOSEN = ["squared_conv_input", "squared_conv_weight", "kronecker_input-reduce", "kronecker_output"]
CHOSEN += ["jacobian_squared_sum", "jacobian_squared_dot", "jacobian_gram"]


@pytest.mark.parametrize("name", CHOSEN)
def test_every_tile_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles go through Triton's own tuner, with a stopwatch that only calls."""
    (operation,) = [operation for operation in OPERATIONS if operation.name == name]
    data = draw(FEW[2], torch.float32, integers=True)
    ran: list[dict[str, Any]] = []

    def launch(kernel: Kernel, grid: Grid, **arguments: Any) -> None:
        tuner = kernel.tuner(lambda call, quantiles: [call(), 1.0, 1.0, 1.0][1:])
        tuner[grid](**arguments)
        ran.append(tuner.best_config.kwargs)
        for tile in {*kernel.nvidia, *kernel.amd}:
            ran.append(dict(tile.constants))
            kernel.function[grid](**arguments, **tile.constants)

    monkeypatch.setattr(Kernel, "launch", launch)
    assert_same(operation.run(data), operation.brute(data))
    assert len(ran) > 2


def test_tiles_are_not_larger_than_the_work() -> None:
    from lapkernels.kernels.triton.squared_conv_input import SQUARED_CONV_INPUT

    def rows(count: int) -> list[int]:
        tiles = SQUARED_CONV_INPUT.tiles({"row_count": count})
        return [tile.constants["ROWS"] for tile in tiles]

    assert rows(64) == [64, 32, 16, 4]
    assert rows(20) == [32, 16, 4]
    assert rows(1) == [4]


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_deterministic_algorithms_take_the_first_tile_untimed(
    deterministic: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lapkernels.kernels.triton import launch
    from lapkernels.kernels.triton.jacobian_squared_sum import SQUARED_SUM

    launched: list[tuple[str, dict[str, Any]]] = []

    class Function:
        """Notes what it is launched with."""

        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: Grid) -> Any:
            return lambda **arguments: launched.append((self.name, arguments))

    kernel = replace(SQUARED_SUM, function=Function("plain"))
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    monkeypatch.setitem(kernel.__dict__, "_tuned", Function("tuned"))
    sizes = {"MOST_ROWS": 64, "column_count": 64, "index_count": 64, "PRECISION": precision}
    torch.use_deterministic_algorithms(deterministic)
    try:
        kernel.launch(lambda constants: (1,), **sizes)
    finally:
        torch.use_deterministic_algorithms(False)
    ((name, arguments),) = launched
    assert name == ("plain" if deterministic else "tuned")
    if deterministic:
        first = SQUARED_SUM.nvidia[0]
        wanted = {**first.constants, **first.options(), "maxnreg": 255}
        if precision == "ieee":
            del wanted["maxnreg"]
        assert {key: arguments[key] for key in arguments if key in {*wanted, "maxnreg"}} == wanted


def test_tiles_are_tuned_with_all_registers_for_tf32() -> None:
    from lapkernels.kernels.triton.jacobian_squared_sum import SQUARED_SUM

    sizes = {"MOST_ROWS": 64, "column_count": 64, "index_count": 64}
    prune = SQUARED_SUM.tuner().early_config_prune
    limits = {
        precision: [config.maxnreg for config in prune([], {**sizes, "PRECISION": precision})]
        for precision in ("ieee", "tf32", "tf32x3")
    }
    assert limits == {"ieee": [None, 255], "tf32": [255, 255], "tf32x3": [255, 255]}


def test_sums_are_split_by_sizes_alone() -> None:
    device = torch.device("cpu")
    assert split_count(1, 1, 10, device) == 1
    assert split_count(1, 100, 10, device) == split_count(1, 100, 10, device) > 1
    assert split_count(1, 100, 1 << 25, device) == 1, "parts would take too much memory"
