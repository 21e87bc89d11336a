"""Posteriors belong to the weights of their fit: every value of them is looked at."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace.weights import ROWS, fingerprint_of
from tests.laplace.problems import Problem, classifier, regressor


def holder(tensor: Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("values", tensor)
    return module


LARGE = torch.arange(3 * ROWS + 7)


@pytest.mark.parametrize(
    "values",
    [
        *(LARGE.to(dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64)),
        *(LARGE[:9].to(dtype) for dtype in (torch.float16, torch.int8, torch.complex128)),
        LARGE % 7 == 0,
        torch.eye(3).to_sparse(),
    ],
    ids=lambda values: f"{values.dtype}-{len(values)}-{values.layout}",
)
def test_no_value_changes_unseen(values: Tensor) -> None:
    known = fingerprint_of(holder(values))
    assert fingerprint_of(holder(values.clone())) == known
    dense = values.to_dense()
    for place in {0, 1, len(values) // 2, len(values) - 1}:
        changed = dense.clone()
        changed[place] = ~changed[place] if changed.dtype is torch.bool else changed[place] + 64
        changed = changed.to_sparse() if values.is_sparse else changed
        assert fingerprint_of(holder(changed)) != known
    assert fingerprint_of(holder(dense.flip(0))) != known
    assert fingerprint_of(holder(values.unsqueeze(0))) != known


def test_small_changes_of_large_tensors() -> None:
    x = torch.rand(40, 2 * ROWS, dtype=torch.float32)
    known = fingerprint_of(holder(x))
    for _ in range(20):
        row, column = int(torch.randint(40, ())), int(torch.randint(2 * ROWS, ()))
        other = x.clone()
        other[row, column] = torch.nextafter(x[row, column], torch.tensor(2.0))
        assert fingerprint_of(holder(other)) != known


def test_what_a_model_has() -> None:
    """Layouts are no values, tied tensors count once, and buffers that are not saved do not."""
    net = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))
    net[2].weight = net[0].weight
    known = fingerprint_of(net)
    assert {"0.weight", "1.running_mean", "2.bias"} <= set(known) and "2.weight" not in known
    net[1].register_buffer("scratch", torch.ones(2), persistent=False)
    net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    assert fingerprint_of(net) == known


def predict(how: Any) -> Callable[[lk.Laplace, Problem, Path], Any]:
    return lambda la, problem, path: la.predict(problem.new, how=how)


CALLS: dict[str, Callable[[lk.Laplace, Problem, Path], Any]] = {
    **{how: predict(how) for how in ("linearised", "propagated", "weights")},
    "evidence": lambda la, problem, path: la.log_evidence(),
    "tune": lambda la, problem, path: la.tune(by="evidence"),
    "mackay": lambda la, problem, path: la.tune(by="mackay"),
    "tune linearised": lambda la, problem, path: la.tune(problem.batches, by="linearised"),
    "held out": lambda la, problem, path: la.tune(problem.batches),
    "optimum": lambda la, problem, path: la.find_optimum(problem.batches),
    "sample": lambda la, problem, path: la.sample(2),
    "variance": lambda la, problem, path: la.posterior.variance(),
    "merge": lambda la, problem, path: la.merge(la),
    "save": lambda la, problem, path: la.save(path / "posterior"),
}


@pytest.mark.parametrize("call", CALLS)
def test_other_weights_are_refused(call: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    problem = regressor()
    la = lk.Laplace(problem.model, "gaussian", "diag").fit(problem.batches)
    weight = problem.model.get_parameter("2.weight")
    old = weight.data.clone()
    weight.data[1, 3] += 1e-9
    with pytest.raises(lk.Refused, match=r"2.weight of the model changed after the fit.*fit again"):
        CALLS[call](la, problem, tmp_path)
    assert not list(tmp_path.iterdir())
    weight.data.copy_(old)
    CALLS[call](la, problem, tmp_path)


def step(problem: Problem) -> None:
    optimizer = torch.optim.Adam(problem.model.parameters())
    problem.model(problem.x).sum().backward()
    optimizer.step()


def assign(problem: Problem) -> None:
    state = {name: value + 1 for name, value in problem.model.state_dict().items()}
    problem.model.load_state_dict(state, assign=True)


def train_mode(problem: Problem) -> None:
    problem.model.train()(problem.x)
    problem.model.eval()


@pytest.mark.parametrize("change", [step, assign, train_mode])
def test_a_model_that_moved_on_is_fitted_again(change: Callable[[Problem], None]) -> None:
    """Also where parameters outside of a last layer's posterior changed, or statistics."""
    problem = classifier()
    problem.model[3] = nn.BatchNorm2d(2).double().eval()  # pyright: ignore
    la = lk.Laplace(problem.model, "categorical", "full", params="6").fit(problem.batches)
    change(problem)
    with pytest.raises(lk.Refused, match="changed after the fit"):
        la.predict(problem.new)
    fresh = lk.Laplace(problem.model, "categorical", "full", params="6").fit(problem.batches)
    la.fit(problem.batches)
    torch.testing.assert_close(la.log_evidence(), fresh.log_evidence())
    torch.testing.assert_close(
        la.predict(problem.new).variance, fresh.predict(problem.new).variance
    )


def test_another_architecture_is_another_model() -> None:
    problem = regressor()
    la = lk.Laplace(problem.model).fit(problem.batches)
    problem.model.insert(1, nn.Identity())  # pyright: ignore[reportCallIssue]
    with pytest.raises(lk.Refused, match="changed after the fit"):
        la.predict(problem.new)
    with pytest.raises(lk.Refused, match="no longer has 2.weight"):
        la.fit(problem.batches)


@pytest.mark.gpu
def test_devices_agree() -> None:
    net = nn.Sequential(nn.Linear(300, 70), nn.BatchNorm1d(70), nn.Linear(70, 3).double())
    assert fingerprint_of(copy.deepcopy(net).cuda()) == fingerprint_of(net)


def test_merged_posteriors_keep_the_fingerprint(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    problem = regressor()
    parts = [lk.Laplace(problem.model).fit([batch]) for batch in problem.batches[:2]]
    merged = parts[0].merge(parts[1])
    merged.save(tmp_path / "merged")
    changed = copy.deepcopy(problem.model)
    changed.get_parameter("0.bias").data[2] += 1e-9
    with pytest.raises(ValueError, match="other parameter values"):
        lk.Laplace.load(tmp_path / "merged", changed)
    lk.Laplace.load(tmp_path / "merged", problem.model).predict(problem.new)
    with pytest.raises(ValueError, match="different models"):
        merged.merge(lk.Laplace(changed).fit(problem.batches))
    problem.model.get_parameter("0.bias").data[2] += 1e-9
    with pytest.raises(lk.Refused, match="0.bias of the model changed"):
        merged.save(tmp_path / "again")
