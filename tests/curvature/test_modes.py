"""Compiled models, autocast and inference mode: the same numbers, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature.functions import FUNCTIONS, tensors


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)
    ).eval()


X, Y = torch.randn(5, 1, 3, 3, generator=torch.Generator().manual_seed(1)), torch.arange(5) % 3

CALLS: dict[str, Callable[[Any], Any]] = {
    **{name: lambda m, run=run: run(m, X, Y, "categorical") for name, run in FUNCTIONS.items()},
    "predict": lambda m: lk.Laplace(m, "categorical").fit((X, Y)).predict(X).variance,
}


@pytest.mark.parametrize("call", CALLS)
def test_compiled_models(call: str) -> None:
    """Before and after they have run, with the names of the model itself."""
    wanted = CALLS[call](network())
    compiled = torch.compile(network(), backend="eager")
    for _ in range(2):
        found = CALLS[call](compiled)
        if isinstance(wanted, Mapping):
            assert list(found) == list(wanted)
        for value, other in zip(tensors(found), tensors(wanted), strict=True):
            torch.testing.assert_close(value, other)
        compiled(X)


def test_compiled_parts() -> None:
    model = network()
    wanted = lk.diag(network(), X, "categorical")
    model[1] = torch.compile(model[1], backend="eager")  # pyright: ignore[reportArgumentType]
    model.compile(backend="eager")
    model(X)
    for name, value in lk.diag(model, X, "categorical").items():
        torch.testing.assert_close(value, wanted[name])


REFUSE_AUTOCAST = {"hessian_diag", "low_rank", "ggn_product", "predict"}


@pytest.mark.parametrize("call", CALLS)
def test_autocast(call: str) -> None:
    """Refused, or the model alone runs under it: sums and results are in float32."""
    wanted = CALLS[call](network())
    with torch.autocast("cpu", torch.bfloat16):
        if call in REFUSE_AUTOCAST:
            with pytest.raises(lk.Refused, match=r"autocast\('cpu'\) .*bfloat16.*enabled=False"):
                CALLS[call](network())
        elif call == "propagated_variance":
            with pytest.raises(lk.Refused, match=r"bfloat16.*predictive_variance"):
                CALLS[call](network())
        else:
            for value, other in _pairs(CALLS[call](network()), wanted):
                assert value.dtype == other.dtype
                if call == "kron_corrected":  # whose eigenvectors have either sign
                    continue
                off = float((value - other).norm() / other.norm())
                # Seven ops, each rounded to eight bits, and squares.
                assert 0 <= off < 2 * 7**0.5 * 2**-8
        with torch.autocast("cpu", enabled=False):
            found = CALLS[call](network())
    for value, other in _pairs(found, wanted):
        assert torch.equal(value, other)


def _pairs(found: Any, wanted: Any) -> zip[tuple[Tensor, Tensor]]:
    return zip(tensors(found), tensors(wanted), strict=True)


def test_autocast_of_predictions_is_refused() -> None:
    la = lk.Laplace(network(), "categorical").fit((X, Y))
    for how in ("linearised", "propagated", "weights"):
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(lk.Refused, match="autocast"):
            la.predict(X, how=how)


@pytest.mark.parametrize("call", CALLS)
def test_inference_mode_is_refused(call: str) -> None:
    model = network()
    with torch.inference_mode(), pytest.raises(lk.Refused, match="use no_grad"):
        CALLS[call](model)


def test_posteriors_in_inference_mode() -> None:
    la = lk.Laplace(network(), "categorical").fit((X, Y))
    wanted = la.predict(X, how="weights", samples=3, generator=torch.Generator()).variance
    with torch.inference_mode():
        found = la.predict(X, how="weights", samples=3, generator=torch.Generator()).variance
        with pytest.raises(lk.Refused, match="use no_grad"):
            la.tune(by="evidence")
        la.sample(2)
        la.log_evidence()
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    "call", ["diag", "hessian_diag", "gradient_and_diag", "low_rank", "predictive_variance"]
)
def test_tensors_made_in_inference_mode(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = CALLS[call](network())
    with torch.inference_mode():
        model, x, y = network(), X.clone(), Y.clone()
    monkeypatch.setitem(globals(), "X", x)
    monkeypatch.setitem(globals(), "Y", y)
    for value, other in zip(tensors(CALLS[call](network())), tensors(wanted), strict=True):
        assert torch.equal(value, other)
    with pytest.raises(lk.Refused, match="0.weight was made inside torch.inference_mode"):
        CALLS[call](model)
