"""What people try first: it works, or a message says what to write."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lapkernels as lk
from tests.laplace.problems import classifier, regressor


def test_parameters_as_modules_and_tensors() -> None:
    problem = classifier()
    model: Any = problem.model
    names = {
        "6": model[6],
        "0.weight": model[0].weight,
        "0": [model[0].weight, model[0].bias],
        "3": [model[3], "3.weight"],
    }
    for name, given in names.items():
        assert list(lk.diag(model, problem.x, params=given)) == list(
            lk.diag(model, problem.x, params=name)
        )
    wrong: list[tuple[Any, Any, str]] = [
        ("head", ValueError, "no parameter or module 'head', but '0', '2', '3', '6'"),
        (nn.Linear(2, 2), ValueError, "Linear given has no parameter of this very model"),
        (model[1], ValueError, "Tanh given has no parameter"),
        ([nn.Parameter(torch.zeros(1))], ValueError, "Parameter given has no parameter"),
        ([6], TypeError, "params has a int"),
    ]
    for given, error, message in wrong:
        with pytest.raises(error, match=message):
            lk.Laplace(model, "categorical", params=given)


def test_a_loader_or_a_pair_is_predicted() -> None:
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical").fit(problem.batches)
    wanted = la.predict(problem.x, joint=True)
    loader = DataLoader(TensorDataset(problem.x, problem.y), batch_size=5)
    inputs = DataLoader(TensorDataset(problem.x), batch_size=5)
    pair = (problem.x, problem.y)
    for given in (loader, inputs, pair, list(pair), [pair], iter(problem.batches)):
        found = la.predict(given, joint=True)
        for name in ("mean", "variance", "covariance", "probabilities"):
            torch.testing.assert_close(getattr(found, name), getattr(wanted, name))
    chosen = torch.arange(12).unsqueeze(1) % 3
    picked = la.predict(loader, outputs=chosen).variance
    torch.testing.assert_close(picked, wanted.variance.gather(1, chosen))
    variance = {name: torch.ones_like(p) for name, p in problem.model.named_parameters()}
    both = [lk.predictive_variance(problem.model, x, variance) for x in (problem.x, pair, loader)]
    torch.testing.assert_close(both[1], both[0])
    torch.testing.assert_close(both[2], both[0])
    with pytest.raises(TypeError, match="x is a int"):
        la.predict(3)
    with pytest.raises(ValueError, match="holds no batch"):
        la.predict([])


class Sum(nn.Module):
    """Of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2).double()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.inner(a + b)


def test_two_inputs_stay_two() -> None:
    model, (a, b) = Sum(), torch.randn(2, 4, 3, dtype=torch.float64)
    y = torch.randn(4, 2, dtype=torch.float64)
    la = lk.Laplace(model).fit([((a, b), y)])
    wanted = la.predict((a, b)).variance
    for given in ([(a, b)], [((a, b), y)], ((a, b), y)):
        torch.testing.assert_close(la.predict(given).variance, wanted)


def test_probabilities_for_logits_are_told() -> None:
    problem = classifier()
    soft = nn.Sequential(problem.model, nn.Softmax(1)).eval()
    with pytest.warns(UserWarning, match="leave the softmax out"):
        lk.Laplace(soft, "classification").fit(problem.batches)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lk.Laplace(problem.model, "classification").fit(problem.batches)


MESSAGES: list[tuple[Any, Any, str]] = [
    (lambda m, x, y: (m, "classification", (x, y.double())), ValueError, r"labels are y.long\(\)"),
    (lambda m, x, y: (m, "classification", (x, y + 1)), ValueError, "labels 0 to 2"),
    (lambda m, x, y: (m, "classification", (x, y > 0)), TypeError, "integer labels"),
    (lambda m, x, y: (nn.Sequential(m, nn.Linear(3, 1).double()), "classification", (x, y)),
     ValueError, '"bernoulli"'),
    (lambda m, x, y: (nn.Sequential(m, nn.Dropout()).train(), "classification", (x, y)),
     lk.Refused, r"call model.eval\(\) first"),
    (lambda m, x, y: (m, "classification", (x.to("meta"), y)),
     ValueError, r"inputs are on meta, the model on cpu: x.to\('cpu'\)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "message"), MESSAGES)
def test_messages_of_a_fit(change: Any, error: Any, message: str) -> None:
    problem = classifier()
    model, likelihood, data = change(problem.model, problem.x, problem.y)
    with pytest.raises(error, match=message):
        lk.Laplace(model, likelihood).fit(data)


def test_labels_are_needed_for_empirical() -> None:
    problem = classifier()
    with pytest.raises(ValueError, match=r"'empirical' needs labels: give batches \(inputs"):
        lk.Laplace(problem.model, "categorical", "diag", "empirical").fit(problem.x)


def test_prints_are_short() -> None:
    for problem in (classifier(), regressor()):
        la = lk.Laplace(problem.model, problem.likelihood)
        assert "call fit(data)" in repr(la)
        la.fit(problem.batches).tune((problem.new, problem.y[:4]))
        p = la.predict(problem.new)
        d = lk.diag(problem.model, problem.batches, problem.likelihood)
        k = lk.kron(problem.model, problem.batches, problem.likelihood)
        b = lk.blocks(problem.model, problem.batches, problem.likelihood, by="layer")
        for one in (la, p, d, k, b):
            assert len(repr(one)) < 600 and "tensor" not in repr(one), repr(one)
        assert "4 held-out" in repr(la) or "8 held-out" in repr(la)
        assert "0.weight: [" in repr(d)
    assert "total_std" in repr(p) and "noise" in repr(la)
