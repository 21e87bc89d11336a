"""The table of choices decides what serves, and either side gives the same value."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lapkernels as lk
from lapkernels import ops
from lapkernels.kernels import NATIVE, selector
from lapkernels.ops import OPS, Geometry, serving
from lapkernels.ops.base.correlation import canonical
from lapkernels.ops.base.matrix_products import takes_few
from lapkernels.ops.base.registration import Op
from lapkernels.ops.kronecker_input import moments_by_library
from lapkernels.ops.scaled_product import banded_product

pytestmark = pytest.mark.skipif(NATIVE.path is None, reason=f"no compiled library: {NATIVE.reason}")

CONV, POINTWISE = Geometry.conv(3, padding=1, dims=1), Geometry.conv(1, dims=1)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def diagonal(method: str, shape: tuple[int, ...], *layers: nn.Module) -> Tensor:
    """Of a model that no plan is kept of."""
    torch.manual_seed(0)
    for layer in layers:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            layer.reset_parameters()
    found = lk.diag(nn.Sequential(*layers).eval(), draw(*shape), "gaussian", method)  # type: ignore[arg-type]
    return torch.cat([value.flatten() for value in found.values()])


def sparse() -> Tensor:
    layers = (nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(12, 4))
    return diagonal("exact", (2, 2, 10, 10), *layers)


def pooled() -> Tensor:
    return ops.max_pool2d(draw(2, 3, 8, 9), [2, 2], [2, 2], [0, 0], [1, 1], False)[0]


CALLS: dict[str, Callable[[], Tensor]] = {
    "conv_input_by_library": lambda: ops.conv_input(draw(2, 4, 6), draw(4, 3, 3), (6,), CONV),
    "conv_weight_by_library": lambda: ops.conv_weight(draw(2, 4, 6), draw(2, 3, 6), CONV),
    "squared_conv_input_by_library": lambda: ops.squared_conv_input(
        draw(2, 4, 6).abs(), draw(4, 3, 3), (6,), CONV
    ),
    "squared_convolution_by_library": lambda: ops.squared_conv_weight(
        draw(2, 4, 6).abs(), draw(2, 3, 6), CONV
    ),
    "short_rows_by_library": lambda: ops.squared_conv_input(
        draw(2, 4, 6).abs(), draw(4, 3, 3), (6,), CONV
    ),
    "matrix_product_by_library": lambda: ops.squared_conv_weight(
        draw(2, 4, 6).abs(), draw(2, 3, 6), POINTWISE
    ),
    "outer_product_by_library": lambda: ops.jacobian_squared_sum(
        draw(5, 2, 4), draw(2, 3), Geometry()
    ),
    "few_columns_by_library": lambda: ops.jacobian_squared_sum(
        draw(2, 3, 5, 4), draw(3, 5, 6), Geometry()
    ),
    "row_moments_by_library": lambda: ops.kronecker_input(draw(7, 5), Geometry()),
    "channel_moments_by_library": lambda: ops.kronecker_output(draw(2, 2, 3, 9), POINTWISE),
    "max_pool_by_kernel": pooled,
    "zeros_skipped": sparse,
    "zeros_looked_for": sparse,
    "linear_chained": lambda: diagonal(
        "approx", (3, 5), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)
    ),
    "band_multiplied": lambda: banded_product(draw(130, 140).triu(), draw(140, 3)),
    "copies_stacked": lambda: diagonal(
        "exact", (2, 1, 4, 4), nn.Conv2d(1, 2, 3), nn.Upsample(scale_factor=2), nn.Conv2d(2, 1, 3)
    ),
}


class Calls(TorchDispatchMode):
    """The names of all ops of torch and all kernels that ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.names: list[str] = []
        monkeypatch.setattr(selector, "_native_op", self._kernel(selector._native_op))

    def _kernel(self, find: Callable[[str], Any]) -> Callable[[str], Any]:
        def noted(name: str) -> Any:
            kernel = find(name)

            def run(*arguments: Any) -> Any:
                self.names.append(name)
                return kernel(*arguments)

            return run if kernel is not None else None

        return noted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_every_row_is_tried() -> None:
    assert set(CALLS) == set(serving.TABLE)


@pytest.mark.parametrize("row", CALLS)
def test_the_table_decides(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    values: list[Tensor] = []
    if row == "zeros_skipped":
        monkeypatch.setattr(serving, "LOOKED_FOR", 1)
    if row == "zeros_looked_for":
        monkeypatch.setattr(serving, "DENSITY", 2.0)
    for answer in (True, False):
        changed = replace(serving.TABLE[row], holds=lambda *sizes, answer=answer: answer)
        with monkeypatch.context() as patch:
            patch.setitem(serving.TABLE, row, changed)
            with Calls(patch) as calls:
                values.append(CALLS[row]())
        ran.append(calls.names)
    assert ran[0] != ran[1]
    torch.testing.assert_close(values[0], values[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("row", serving.TABLE.values(), ids=list(serving.TABLE))
def test_rows_say_what_they_are(row: serving.Row) -> None:
    assert all((row.ops, row.by, row.where, row.measured, row.holds.__doc__))


def test_layouts_and_sizes_that_are_left_to_the_kernels() -> None:
    few = serving.FEW_COLUMNS
    s, x = draw(1, 3, 4, 5).mT, draw(1, 3, 4, 6).mT
    wide = torch.ones(1, 1, 2, serving.JACOBIAN // 5 + 1).mT
    left = [(s.expand(few + 1, -1, -1, -1), x), (s, x.expand(2, -1, -1, -1)), (s.contiguous(), x)]
    assert takes_few(s, x)
    assert not any(
        takes_few(*pair) for pair in [*left, (s, x.contiguous()), (s[:, :1, :, :2], wide)]
    )
    rows, features = serving.MOMENT_ROWS, serving.MOMENT_FEATURES
    channels, many = serving.MOMENT_CHANNELS, serving.MOMENT_POSITIONS
    for served in ((rows, features + 1, 1), (rows + 1, features, 1), (2, channels, many)):
        assert moments_by_library(draw(*served)) is not None
    for left_over in (
        (rows + 1, features + 1, 1),
        (2, channels + 1, many),
        (2, channels, many - 1),
    ):
        assert moments_by_library(draw(*left_over)) is None


def test_an_op_says_who_serves_it() -> None:
    op = OPS["jacobian_squared_sum"]
    assert isinstance(op, Op)
    x = draw(3, 5, 6)
    few, many = (canonical(draw(columns, 3, 5, 4), x, Geometry()) for columns in (2, 9))
    assert op.served_by(*few) == "torch"
    assert op.served_by(*many) == "kernel"
    assert op.served_by(*canonical(draw(9, 3, 5, 4)[:, :0], x[:0], Geometry())) == "reference"
    with lk.use_backend("cpp"):
        assert op.served_by(*few) == "kernel"
    with lk.use_backend("reference"):
        assert op.served_by(*few) == "reference"


# Comparisons with numbers that are no choice between implementations.
NO_CHOICE = {
    "ops/max_pool.py": ["x.shape[2] * x.shape[3] >= 1 << 31"],  # what the kernel can index
    "rules/activations.py": ["threshold >= 20"],  # where torch's softplus is linear
    "rules/base/local_gradient.py": ["one.numel() > LARGEST"],  # a refusal by size
    # Where rounding decides, not speed.
    "rules/base/normalised.py": ["torch.Size(shape).numel() < SMALLEST * count"],
}


def test_no_threshold_hides_elsewhere() -> None:
    """Ops and rules compare no size with a number above two; ranks and numbers of arguments may."""
    package = Path(lk.__file__).parent
    found: dict[str, list[str]] = {}
    for folder in ("ops", "rules"):
        for path in sorted((package / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            numbers = {
                target.id
                for node in tree.body
                if isinstance(node, ast.Assign) and _is_large(node.value, set())
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            hidden = [
                text
                for node in ast.walk(tree)
                if isinstance(node, ast.Compare)
                and not any(rank in (text := ast.unparse(node)) for rank in ("dim", "len("))
                and any(isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in node.ops)
                and any(_is_large(side, numbers) for side in (node.left, *node.comparators))
            ]
            if hidden and path.name != "serving.py":
                found[path.relative_to(package).as_posix()] = hidden
    assert found == NO_CHOICE


def _is_large(node: ast.expr, numbers: set[str]) -> bool:
    """Whether an expression is a number above two, or has one as a factor or by its name."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) and abs(node.value) > 2
    if isinstance(node, ast.Name):
        return node.id in numbers
    if isinstance(node, ast.BinOp):
        return _is_large(node.left, numbers) or _is_large(node.right, numbers)
    return False
