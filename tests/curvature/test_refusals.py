"""Right or refused: never silently wrong."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from tests.curvature import check, oracle, refusals
from tests.curvature.functions import FUNCTIONS, ones, tensors
from tests.curvature.zoo import ZOO
from tests.curvature.zoo.network import Apply, Net

REFUSALS = (lk.Refused, TypeError, ValueError)
ROUTES = ("auto", "autograd")


def cases(must: str, variants: Sequence[str]) -> list[Any]:
    """Cases with a variant each."""
    return [
        pytest.param(case, variant, id=f"{case.id}-{variant}")
        for case in refusals.CASES
        for variant in variants
        if case.must == must
    ]


@pytest.mark.parametrize("case, route", cases("refuse", ROUTES))
def test_refused(case: refusals.Case, route: Any) -> None:
    model, x = case.make()
    data = (x, None) if isinstance(x, tuple) else x
    with check.quiet(), pytest.raises(REFUSALS) as caught:
        lk.diag(model, data, route=route)
    message = str(caught.value)
    assert re.search(case.words, message), message
    assert len(message) > 20 and not message.startswith("aten"), message


@pytest.mark.parametrize("case, method", cases("refuse", ("approx", "mc", "mixed")))
def test_refused_by_other_methods(case: refusals.Case, method: Any) -> None:
    model, x = case.make()
    with check.quiet(), pytest.raises(REFUSALS):
        lk.diag(model, (x, None), method=method)


def some_labels(model: nn.Module, x: Any) -> tuple[Any, Tensor]:
    """Of the output's shape, if there is one."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            f = oracle.call(copy.deepcopy(model), x)
        except Exception:
            return x, torch.zeros(3, 2)
    return x, torch.zeros_like(f) if isinstance(f, Tensor) else torch.zeros(3, 2)


OTHER_FUNCTIONS = [name for name in FUNCTIONS if name not in ("diag", "mc", "approx")]


@pytest.mark.parametrize("case, name", cases("refuse", tuple(OTHER_FUNCTIONS)))
def test_refused_by_other_functions(case: refusals.Case, name: str) -> None:
    model, x = case.make()
    with check.quiet(), pytest.raises(REFUSALS):
        FUNCTIONS[name](model, *some_labels(model, x), "gaussian")


@pytest.mark.parametrize("name", ["autograd", *FUNCTIONS])
def test_overflow_is_named_or_has_autograds_answer(name: str) -> None:
    """Behind a saturated tanh the gradient is zero, of inputs whose squares are infinite."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x = torch.full((2, 3), 1e200, dtype=torch.float64)
    with check.quiet():
        try:
            if name == "autograd":
                found = lk.diag(model, x, route="autograd")
            else:
                found = FUNCTIONS[name](model, x, torch.zeros(2, 2).double(), "gaussian")
        except lk.Refused as error:
            assert re.search("of (0.weight|the outputs) is not finite", str(error))
            return
    known, _ = oracle.jacobians(model, x)
    assert not known["0.weight"].any()
    held = [*tensors(found)]
    assert held and all(bool(one.isfinite().all()) for one in held)


@pytest.mark.parametrize("case, route", cases("handle", ROUTES))
def test_handled(case: refusals.Case, route: Any) -> None:
    model, x = case.make()
    problem = check.of(model, x)
    with check.quiet():
        check.assert_close(lk.diag(model, problem.data, route=route), problem.exact())


ONLY_AUTOGRAD = ("straight-through", "gradient-reversed", "gradient-hook", "autograd-inside")


@pytest.mark.parametrize("method", ["approx", "mixed"])
@pytest.mark.parametrize("name", [*ONLY_AUTOGRAD, "shape-fourier"])
def test_what_only_autograd_knows_has_no_diagonal(name: str, method: Any) -> None:
    """Rules would say something else than the gradient that the user has written."""
    if name in ONLY_AUTOGRAD:
        model, x = next(case for case in refusals.CASES if case.id == name).make()
    else:
        model, x = ZOO[name].make()
    with pytest.raises(lk.Refused, match="diagonal"):
        lk.diag(model, x, method=method, threshold=2)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id) for case in refusals.CASES if case.words == "eval"]
)
def test_the_module_is_named(case: refusals.Case) -> None:
    model, x = case.make()
    names = [re.escape(name) for name, _ in model.named_modules() if name]
    with pytest.raises(REFUSALS, match=rf"\b({'|'.join(names)})\b"):
        lk.diag(model, x)


def deep(middle: nn.Module) -> nn.Module:
    """Something odd, some way down."""
    inner = nn.Sequential(nn.Linear(3, 3), middle)
    return nn.Sequential(nn.Linear(3, 3), nn.ModuleDict({"odd": inner})["odd"]).double()


def test_the_path_of_a_module_is_named() -> None:
    across, x = Apply(lambda x: x - x.mean(0)), torch.randn(3, 3, dtype=torch.float64)
    with check.quiet(), pytest.raises(REFUSALS, match=r"\b1\.1\b|sample \d"):
        lk.diag(deep(across), x)
    with pytest.raises(lk.Refused, match=r"\b1\.1\b"):
        lk.diag(deep(across), x, route="rules")
    with pytest.raises(lk.Refused, match=r"\b1\.1\b.*eval"):
        lk.diag(deep(nn.BatchNorm1d(3)).train(), x)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("by", ["no_grad", "data", "detach"])
def test_a_parameter_that_the_model_writes_to_is_refused(by: str, route: Any) -> None:
    """What was written would be taken for a constant. Nothing is changed by the refusal."""

    def forward(net: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight = {"no_grad": net.w, "data": net.w.data, "detach": net.w.detach()}[by]
            weight.clamp_(-0.1, 0.1)
        return x @ net.w

    model = Net(forward, w=nn.Parameter(torch.randn(3, 2)))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(lk.Refused, match="writes to the parameter w"):
        lk.diag(model, torch.randn(2, 3), route=route)
    assert torch.equal(model.state_dict()["w"], before["w"])


@pytest.mark.parametrize("route", ["auto", "rules"])
def test_sparse_tensors_are_refused(route: Any) -> None:
    model = Net(
        lambda net, x: torch.sparse.mm(net.w.to_sparse(), x.T).T, w=nn.Parameter(torch.eye(3))
    )
    with pytest.raises(lk.Refused, match="_to_sparse in the model makes a sparse"):
        lk.diag(model, torch.randn(2, 3), route=route)


@pytest.mark.parametrize("uses", ["weights", "nothing"])
def test_branches_that_torch_traces_are_refused(uses: str) -> None:
    def forward(net: Any, x: Tensor) -> Any:
        branches = (net.head, net.other) if uses == "weights" else (torch.sin, torch.cos)
        return torch.cond(net.flag, *branches, (net.stem(x),))

    layers = {name: nn.Linear(3, 3) for name in ("stem", "head", "other")}
    model = Net(forward, flag=torch.tensor(True), **layers)
    x = torch.randn(2, 3)
    assert model(x).shape == x.shape
    calls: list[Callable[[], Any]] = [
        *(partial(lk.diag, model, x, route=route) for route in ROUTES),
        partial(lk.ggn_product, model, x, ones(model)),
    ]
    for call in calls:
        with pytest.raises(lk.Refused, match="runs in torch.cond or its like"):
            call()


def test_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match="an nn.Module is needed"):
        lk.diag(torch.tanh, torch.randn(2, 3))  # pyright: ignore[reportArgumentType]


def test_an_output_by_the_name_of_an_attribute() -> None:
    net = nn.Linear(3, 2)
    model = Net(lambda own, x: SimpleNamespace(logits=own.net(x)), net=net)
    found = lk.diag(model, torch.ones(2, 3), output="logits")
    assert torch.equal(found["net.weight"], torch.full((2, 3), 2.0))


@pytest.mark.parametrize("kept", ["parameter", "transposed"])
def test_a_parameter_by_a_reference_of_its_own_is_refused(kept: str) -> None:
    """A copy takes the place of the attribute alone: the reference would count as a constant."""
    head = nn.Linear(3, 3, bias=False, dtype=torch.float64)
    known = [head.weight if kept == "parameter" else head.weight.T]
    model = Net(lambda net, x: torch.tanh(net.head(x)) @ known[0], head=head)
    x = torch.randn(2, 3, dtype=torch.float64)
    calls: list[Callable[[], Any]] = [
        *(partial(lk.diag, model, x, route=route) for route in ROUTES),
        partial(lk.ggn_product, model, x, ones(model)),
        partial(lk.hessian_diag, model, (x, x)),
    ]
    for call in calls:
        with pytest.raises(lk.Refused, match="reads the parameter head.weight by a reference"):
            call()
