"""Choosing parameters: a subset's diagonal is that part of the whole one."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import check, oracle
from tests.curvature.zoo import ZOO, Net

METHODS = ("exact", "approx", "empirical", "mixed")


def network() -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 2, 2),
            nn.BatchNorm2d(2),
            nn.Tanh(),
            nn.Sequential(nn.Flatten(), nn.Linear(8, 3)),
            nn.Linear(3, 2),
        )
        return model.double().eval(), torch.randn(3, 1, 3, 3, dtype=torch.float64)


EVERY = (
    *("0.weight", "0.bias", "1.weight", "1.bias"),
    *("3.1.weight", "3.1.bias", "4.weight", "4.bias"),
)
CHOICES: list[tuple[Any, tuple[str, ...]]] = [
    ("0.weight", ("0.weight",)),
    (["4.bias", "0.bias"], ("0.bias", "4.bias")),
    (("1",), ("1.weight", "1.bias")),
    ("3", ("3.1.weight", "3.1.bias")),
    (["3.1", "4"], ("3.1.weight", "3.1.bias", "4.weight", "4.bias")),
    (["4", "4.bias"], ("4.weight", "4.bias")),
    ({"4.weight"}, ("4.weight",)),
    (re.compile("bias$"), ("0.bias", "1.bias", "3.1.bias", "4.bias")),
    (re.compile(r"^[01]\."), EVERY[:4]),
    (lambda name, p: p.dim() == 1, ("0.bias", "1.weight", "1.bias", "3.1.bias", "4.bias")),
    (lambda name, p: name == "3.1.weight", ("3.1.weight",)),
    (None, EVERY),
]


@pytest.mark.parametrize(
    "method, route", [*((method, "auto") for method in METHODS), ("exact", "autograd")]
)
@pytest.mark.parametrize("params, names", CHOICES)
def test_part_of_the_whole(params: Any, names: tuple[str, ...], method: Any, route: Any) -> None:
    model, x = network()
    data = check.of(model, x, "categorical").data
    # Mixed: where a value is narrow does not depend on what is chosen.
    options: dict[str, Any] = {"method": method, "threshold": 10}
    whole = lk.diag(model, data, "categorical", **options)
    found = lk.diag(model, data, "categorical", params=params, route=route, **options)
    assert tuple(found) == names
    check.assert_close(found, {name: whole[name] for name in names}, 1e-11)


def test_an_embedding_alone() -> None:
    """Also where it is the network's only layer with parameters chosen, deep inside."""
    model = nn.Sequential(
        nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)
    ).double()
    x = torch.tensor([[0, 1], [1, 1], [4, 0]])
    true = check.of(model, x).exact()
    found = lk.diag(model, x, params="0")
    check.assert_close(found, {"0.weight": true["0.weight"]})
    # Tokens that never occur have no curvature.
    assert not found["0.weight"][2:4].any() and found["0.weight"][[0, 1, 4]].all()


@pytest.mark.parametrize("name", ["module-twice", "convs-tied", "weight-norm", "low-rank-adapter"])
def test_part_of_shared_and_computed_weights(name: str) -> None:
    problem = check.problem(ZOO[name])
    true = problem.exact()
    for chosen, value in true.items():
        found = lk.diag(problem.model, problem.x, params=chosen)
        check.assert_close(found, {chosen: value})


def test_frozen_parameters_are_left_out() -> None:
    model, x = network()
    whole = lk.diag(model, x)
    model.get_submodule("0").requires_grad_(False)
    model.get_parameter("4.bias").requires_grad_(False)
    found = lk.diag(model, x)
    names = [name for name in EVERY if not name.startswith("0.") and name != "4.bias"]
    assert list(found) == names
    check.assert_close(found, {name: whole[name] for name in names}, 1e-12)


def test_frozen_parameters_can_be_chosen() -> None:
    model, x = network()
    whole = lk.diag(model, x)
    model.requires_grad_(False)
    found = lk.diag(model, x, params=["0", "4.bias"])
    names = ["0.weight", "0.bias", "4.bias"]
    check.assert_close(found, {name: whole[name] for name in names}, 1e-12)
    assert not any(p.requires_grad for p in model.parameters())


def test_tied_parameters_have_one_name() -> None:
    model, x = ZOO["embedding-tied-to-linear"].make()
    found = lk.diag(model, x, params="table")
    assert list(found) == ["table.weight"] == list(oracle.trainable(model))[:1]
    check.assert_close(found, {"table.weight": check.of(model, x).exact()["table.weight"]})


def test_tied_parameters_are_found_by_their_other_name() -> None:
    model, x = ZOO["embedding-tied-to-linear"].make()
    assert model.get_parameter("head.weight") is model.get_parameter("table.weight")
    assert list(lk.diag(model, x, params="head")) == ["table.weight"]


@pytest.mark.parametrize(
    "params, error, words",
    [
        ("5", ValueError, "'5'"),
        ("0.weights", ValueError, "'0.weights'"),
        (["0.weight", "wieght"], ValueError, "'wieght'"),
        ("2", ValueError, "'2'"),
        ("", ValueError, "''"),
        ([], ValueError, "no parameter"),
        (re.compile("gamma"), ValueError, "no parameter"),
        (lambda name, p: False, ValueError, "no parameter"),
    ],
)
def test_what_does_not_exist(params: Any, error: type[Exception], words: str) -> None:
    model, x = network()
    with pytest.raises(error, match=words):
        lk.diag(model, x, params=params)


def test_parameters_that_the_output_does_not_use() -> None:
    """Its diagonal is zero, whether or not others are used."""
    parts = nn.ModuleDict({"used": nn.Linear(3, 2), "spare": nn.Linear(3, 2)})
    net = Net(lambda net, x: net.parts["used"](x), parts=parts).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    found = lk.diag(net, x)
    assert list(found) == [
        f"parts.{part}.{name}" for part in ("used", "spare") for name in ("weight", "bias")
    ]
    check.assert_close(found, check.of(net, x).exact())
    assert not found["parts.spare.weight"].any()
    with pytest.raises(lk.Refused, match="does not depend"):
        lk.diag(net, x, params="parts.spare")
