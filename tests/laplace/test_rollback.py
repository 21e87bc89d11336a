"""Calls that fail or are interrupted leave everything as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lapkernels as lk
from lapkernels.laplace import OnlineEvidence
from tests.laplace.problems import Problem, regressor


class Stopped:
    """Batches that are interrupted, or broken, when so many have been read."""

    def __init__(self, problem: Problem, alive: int, error: BaseException) -> None:
        self.batches, self.alive, self.error = problem.batches, alive, error

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            if self.alive == 0:
                raise self.error
            self.alive -= 1
            yield batch


CALLS: dict[str, tuple[int, Callable[[lk.Laplace, Any], Any]]] = {
    "fit": (2, lambda la, data: la.fit(data)),
    "held out": (2, lambda la, data: la.tune(data)),
    # In the second turn, after a prior was found.
    "linearised": (60, lambda la, data: la.tune(data, by="linearised", tolerance=1e-6)),
    "optimum": (4, lambda la, data: la.find_optimum(data)),
}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError()], ids=repr)
@pytest.mark.parametrize("call", CALLS)
def test_of_a_posterior(call: str, error: BaseException) -> None:
    problem = regressor()
    la = lk.Laplace(problem.model, "gaussian", "full").fit(problem.batches).tune(by="evidence")
    la.find_optimum(problem.batches)
    before, evidence = dict(vars(la)), float(la.log_evidence())
    alive, run = CALLS[call]
    data = Stopped(problem, alive, error)
    with pytest.raises(type(error)):
        run(la, data)
    assert data.alive == 0
    assert vars(la).keys() == before.keys()
    assert all(value is before[name] for name, value in vars(la).items())
    assert float(la.log_evidence()) == evidence


def test_of_held_out_labels_that_are_wrong() -> None:
    problem = regressor()
    la = lk.Laplace(problem.model, "gaussian").fit(problem.batches)
    with pytest.raises(ValueError, match="y has shape"):
        la.tune([(problem.x, problem.y), (problem.x, problem.y[:, 0])])
    assert float(la.prior.values[""]) == 1


def test_a_fit_that_gives_no_posterior_leaves_the_old_one() -> None:
    problem = regressor()
    la = lk.Laplace(problem.model, "gaussian").fit(problem.batches)
    wanted = la.predict(problem.new).variance
    weight = problem.model.get_parameter("0.weight")
    old = weight.data.clone()

    class Training:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            yield problem.x[:5], problem.y[:5]
            weight.data[0] += 1

    with pytest.raises(lk.Refused, match="0.weight of the model changed"):
        la.fit(Training())
    weight.data.copy_(old)
    assert torch.equal(la.predict(problem.new).variance, wanted)


def test_of_online_evidence() -> None:
    problem = regressor()
    problem.model.train()
    online = OnlineEvidence(problem.model, burn_in=1, every=1)
    online.end_epoch(problem.batches)
    before = dict(vars(online))
    with pytest.raises(KeyboardInterrupt):
        online.end_epoch(Stopped(problem, 2, KeyboardInterrupt()))
    assert vars(online) == before and problem.model.training
    assert [epoch for epoch, _ in online.history] == [1] and online.epoch == 1
    online.end_epoch(problem.batches)
    assert [epoch for epoch, _ in online.history] == [1, 2]
