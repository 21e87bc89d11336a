"""The structure that is chosen where none is given, and draws of the linearised function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.laplace.problems import classifier, regressor


class Head(nn.Module):
    """Its last layer is registered first."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(4, outputs)
        self.body = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())


CASES = {4: ("kron", "exact", 4, "linearised"), 5: ("kron", "exact", 2, "linearised"),
         4097: ("diag", "mc", 2, "draws")}  # fmt: skip


@pytest.mark.parametrize("outputs", CASES)
def test_by_outputs(outputs: int) -> None:
    structure, method, count, how = CASES[outputs]
    model, x = Head(outputs).eval(), torch.randn(6, 3)
    data = [(x[:3], torch.arange(3)), (x[3:], torch.arange(3))]
    for given in (data, iter(data), data[0], lk.Shard(iter(data))):
        la = lk.Laplace(model, "classification", prior=2.0)
        assert "chosen at the first batch" in repr(la)
        la.fit(given)
        assert (la.structure, la.method, len(la.parameters), la.how) == (
            structure, method, count, how)  # fmt: skip
        assert la.measured is not None and la.measured.samples == (3 if given is data[0] else 6)
        assert "head.weight" in la.parameters and set(la.prior.precision) == set(la.parameters)
    assert structure in repr(la) and how in repr(la)
    p = la.predict(x, samples=4)
    assert p.probabilities.shape == (6, outputs)
    if outputs == 4097:
        with pytest.raises(lk.Refused, match=r"each of 4097 classes: tune\(by='cautious'\)"):
            la.tune(data)
        la.tune(by="cautious")
    with pytest.raises(ValueError, match="holds no batch"):
        lk.Laplace(model, "classification").fit([])


def test_dense_outputs_have_their_last_layer_drawn(tmp_path: Any) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1)).eval()
    x, y = torch.randn(2, 1, 40, 40), torch.randint(3, (2, 40, 40))
    la = lk.Laplace(model, "classification").fit((x, y)).tune((x + 1, y))
    assert (la.structure, la.how, list(la.parameters)) == ("kron", "draws", ["2.weight", "2.bias"])
    la.save(tmp_path / "posterior")
    assert lk.Laplace.load(tmp_path / "posterior", model).how == "draws"
    assert la.predict(x, samples=3).probabilities.shape == (2, 3, 40, 40)


def test_a_given_structure_or_parameters_stay() -> None:
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical", "diag", params="0").fit(problem.batches)
    assert la.structure == "diag" and list(la.parameters) == ["0.weight", "0.bias"]
    la = lk.Laplace(problem.model, "categorical", params="0").fit(problem.batches)
    assert la.structure == "kron" and list(la.parameters) == ["0.weight", "0.bias"]


@pytest.mark.parametrize("make", [classifier, regressor])
def test_draws_have_the_linearised_variance(make: Any) -> None:
    """Within five standard errors, and the mean softmax of the joint distribution."""
    problem = make()
    la = lk.Laplace(problem.model, problem.likelihood, "full", prior=2.0).fit(problem.batches)
    wanted = la.predict(problem.new, joint=True)
    generator = torch.Generator().manual_seed(0)
    samples = 2000
    found = la.predict(problem.new, how="draws", samples=samples, generator=generator)
    error = (found.variance / wanted.variance - 1).abs()
    assert float(error.max()) < 5 * (2 / samples) ** 0.5
    torch.testing.assert_close(found.mean, wanted.mean)
    if make is classifier:
        linked = la.predict(problem.new, link="mc", samples=samples, generator=generator)
        assert float((found.probabilities - linked.probabilities).abs().max()) < 0.05
    with pytest.raises(ValueError, match="samples=0"):
        la.predict(problem.new, how="draws", samples=0)
