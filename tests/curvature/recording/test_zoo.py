"""Every way through a network gives the numbers of the first: watched, repeated, layer by layer."""

from __future__ import annotations

import copy
import gc
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor, nn

from lapkernels.curvature.backward.chains import Chain
from lapkernels.curvature.recording import replay
from lapkernels.curvature.recording.run_model import Subject
from tests.curvature.check import assert_same, diagonals
from tests.curvature.zoo import Network, params


@contextmanager
def watched() -> Iterator[None]:
    """Every op is recorded below autograd; no function is known."""
    made = Subject.of.__func__  # pyright: ignore[reportFunctionMemberAccess]

    def of(cls: type, *args: Any) -> Subject:
        subject = made(cls, *args)
        subject.watched = True
        return subject

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Subject, "of", classmethod(of))
        yield


def templates(model: nn.Module) -> list[replay.Template]:
    return [one for kind in replay._free.get(model, {}).values() for one in kind]


def tensors_behind(root: object) -> list[Tensor]:
    """All tensors that an object keeps alive."""
    seen: set[int] = set()
    waiting: list[Any] = [root]
    found: list[Tensor] = []
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (type, types.ModuleType, types.BuiltinFunctionType)):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, types.FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or ()]
        else:
            waiting += gc.get_referents(one)
    return found


def moved(x: Any) -> Any:
    """Other data of the same kind."""
    if isinstance(x, tuple):
        return tuple(map(moved, x))
    if isinstance(x, dict):
        return {name: moved(value) for name, value in x.items()}
    return x.flip(0) * 0.75 if x.is_floating_point() else x.flip(0)


@pytest.mark.parametrize("network", params())
def test_zoo(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network.make()
    recorded = diagonals(model, x, network.output)
    other = copy.deepcopy(model)
    with watched():
        assert_same(diagonals(other, x, network.output), recorded, 1e-10)
    with monkeypatch.context() as patch:
        patch.setattr(Chain, "takes", lambda self, m: False)
        layers = diagonals(copy.deepcopy(model), x, network.output, ["approx"])
    approx = {name: value for name, value in recorded.items() if name.startswith("approx")}
    assert_same(layers, approx, 1e-12)
    # The second and third batch repeat the first, or what was recorded of the second.
    for _ in range(2):
        assert_same(diagonals(model, x, network.output), recorded)
    fresh = diagonals(copy.deepcopy(model), moved(x), network.output)
    assert_same(diagonals(model, moved(x), network.output), fresh)
    for template in templates(model):
        assert not tensors_behind(template)
