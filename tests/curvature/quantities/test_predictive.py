"""Predictive variance and covariance: chunks, chosen outputs, refusals; values in test_support."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.backward.columns import Collector
from lapkernels.curvature.passes.passes import Pass
from tests.curvature import oracle
from tests.curvature.check import close
from tests.curvature.zoo import ZOO


def variances(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.rand_like(p) + 0.1 for name, p in oracle.trainable(model).items()}


def covariance(model: nn.Module, x: Any, variance: dict[str, Tensor]) -> Tensor:
    """[N, D, D] of explicit Jacobians."""
    j, _ = oracle.jacobians(model, x)
    rows = [(j[name].flatten(2), value.flatten()) for name, value in variance.items()]
    return torch.stack([(g * v) @ g.mT for g, v in rows]).sum(0)


def test_some_chunks_of_columns() -> None:
    model, x = ZOO["image-to-image"].make()
    variance = variances(model)
    wanted = covariance(model, x, variance)
    for budget in (30_000, 60_000):
        close(lk.predictive_covariance(model, x, variance, memory_budget=budget), wanted)


@pytest.mark.parametrize("some", [False, True])
def test_columns_that_do_not_fit_split_the_batch(
    some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sample's columns go back once, not once with every other chunk of columns."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 6)).double()
    x = torch.randn(7, 1, 6, 6, dtype=torch.float64)
    variance = variances(model)
    chosen = torch.stack([torch.randperm(6)[:4] for _ in x]) if some else None
    wanted = lk.predictive_covariance(model, x, variance, outputs=chosen, memory_budget=1 << 30)
    carried: list[int] = []
    pull = Pass.pull_together

    def counted(one: Pass, s: Tensor, collector: Collector) -> None:
        carried.append(s.shape[0] * s.shape[1])
        pull(one, s, collector)

    monkeypatch.setattr(Pass, "pull_together", counted)
    # Of the widest value, 128 numbers, for all columns of about two samples.
    budget = 2 * 6 * 128 * 8
    found = lk.predictive_covariance(model, x, variance, outputs=chosen, memory_budget=budget)
    close(found, wanted)
    assert len(carried) > 2
    assert sum(carried) == wanted.shape[0] * wanted.shape[1]


def test_selected_outputs() -> None:
    model, x = ZOO["image-to-image"].make()
    variance = variances(model)
    wanted = covariance(model, x, variance)
    same = torch.tensor([3, 17, 3])
    close(
        lk.predictive_variance(model, x, variance, outputs=same),
        wanted.diagonal(dim1=1, dim2=2)[:, same],
    )
    close(lk.predictive_covariance(model, x, variance, outputs=same), wanted[:, same][:, :, same])
    own = torch.tensor([[0, 5], [31, 2]])
    rows = torch.arange(2)[:, None]
    close(
        lk.predictive_variance(model, x, variance, outputs=own),
        wanted.diagonal(dim1=1, dim2=2).gather(1, own),
    )
    close(
        lk.predictive_covariance(model, x, variance, outputs=own),
        wanted[rows[:, :, None], own[:, :, None], own[:, None, :]],
    )


def test_parameters_without_variance_are_known() -> None:
    model, x = ZOO["conv2d-stride"].make()
    variance = variances(model)
    some = {name: value for name, value in variance.items() if name.startswith("3")}
    found = lk.predictive_variance(model, x, some)
    wanted = covariance(model, x, some)
    close(found, wanted.diagonal(dim1=1, dim2=2))


def test_several_batches(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = ZOO["linear-2d"].make()
    assert isinstance(x, Tensor)
    variance, parts = variances(model), [x[:1], x[1:]]
    for function in (lk.predictive_variance, lk.predictive_covariance, lk.propagated_variance):
        close(function(model, iter(parts), variance), function(model, x, variance))
    lk.predictive_variance(model, parts, variance, progress=True, explain=True)
    shown = capsys.readouterr()
    assert "2 columns" in shown.out and "2batch" in shown.err.replace(" ", "")
    lk.predictive_covariance(model, parts, variance, explain=True)
    assert "2 columns" in capsys.readouterr().out


def test_no_output_selected() -> None:
    model, x = ZOO["linear-2d"].make()
    none = torch.zeros(0, dtype=torch.int64)
    assert lk.predictive_variance(model, x, variances(model), outputs=none).shape == (len(x), 0)


def test_float32_variances_are_not_negative() -> None:
    model, x = ZOO["saturated"].make(torch.float32)
    found = lk.predictive_variance(model, x, variances(model))
    assert found.dtype == torch.float32 and bool((found >= 0).all())


def test_refusals() -> None:
    model, x = ZOO["linear-2d"].make()
    variance = variances(model)
    with pytest.raises(ValueError, match="no parameters of the model: .'3.weight'."):
        lk.predictive_variance(model, x, {**variance, "3.weight": torch.ones(1)})
    with pytest.raises(ValueError, match="variance is empty"):
        lk.predictive_variance(model, x, {})
    with pytest.raises(ValueError, match="variance of 0.bias has shape .3,."):
        lk.predictive_variance(model, x, {**variance, "0.bias": torch.ones(3).double()})
    for bad in (-1.0, float("nan"), float("inf")):
        value = torch.ones(5, dtype=torch.float64)
        value[2] = bad
        with pytest.raises(ValueError, match=f"variance of 0.bias holds {bad}"):
            lk.predictive_covariance(model, x, {**variance, "0.bias": value})
    with pytest.raises(ValueError, match="outputs holds 2: 0 to 1"):
        lk.predictive_variance(model, x, variance, outputs=torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="outputs has 2 rows, but there are"):
        lk.predictive_variance(model, x, variance, outputs=torch.zeros(2, 1).long())
    with pytest.raises(ValueError, match="flat indices"):
        lk.predictive_variance(model, x, variance, outputs=torch.zeros(2))
