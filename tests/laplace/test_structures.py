"""Every structure against dense algebra in float64."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace import Swag
from tests.curvature import oracle
from tests.laplace import dense
from tests.laplace.problems import PROBLEMS, Problem

PRIORS: dict[str, Any] = {"number": 0.7, "layer": "layer", "entry": "entry"}
KRONECKER = ("kron", "ekfac")


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


def flat(values: dict[str, Tensor], lead: int = 0) -> Tensor:
    return torch.cat([v.flatten(lead) for v in values.values()], -1)


def fitted(case: str, problem: Problem, prior: str) -> tuple[lk.Laplace, Tensor, Tensor]:
    """The posterior, its dense curvature, and its prior's diagonal."""
    structure, options = dense.CASES[case]
    la = lk.Laplace(problem.model, problem.likelihood, structure, prior=PRIORS[prior], **options)  # pyright: ignore[reportArgumentType]
    la.fit(problem.batches)
    if prior != "number":
        generator = torch.Generator().manual_seed(1)
        values = {
            key: 0.2 + torch.rand(value.shape, generator=generator, dtype=torch.float64)
            for key, value in la.prior.values.items()
        }
        la.set_prior(la.prior.with_values(values))
    return la, dense.curvature(case, problem), dense.prior_diagonal(problem, la.prior.precision)


@pytest.mark.parametrize("make", PROBLEMS)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("case", dense.CASES)
def test_everything(case: str, prior: str, make: str) -> None:
    problem = PROBLEMS[make]()
    if prior == "entry" and case in KRONECKER:
        with pytest.raises(lk.Refused, match="one prior precision for all entries of"):
            fitted(case, problem, prior)[0].log_evidence()
        return
    la, h, lam = fitted(case, problem, prior)
    # Eigenvectors of a low rank are found up to a tolerance.
    tolerance = 1e-6 if case == "low_rank" else 1e-9
    a = h + torch.diag(lam)
    sigma = torch.linalg.inv(a)
    close(la.posterior.log_determinant(), torch.logdet(a), tolerance)
    close(la.log_evidence(), dense.log_evidence(problem, h, lam), tolerance)
    close(flat(la.posterior.variance()), sigma.diagonal(), tolerance)
    torch.manual_seed(0)
    v = {name: torch.randn_like(p) for name, p in problem.model.named_parameters()}
    close(flat(la.posterior.product(v)), a @ flat(v), tolerance)
    close(flat(la.posterior.solve(v)), sigma @ flat(v), tolerance)
    j = problem.jacobian
    wanted = j @ sigma @ j.mT
    found = la.predict(problem.new, joint=True)
    assert found.covariance is not None
    close(found.covariance, wanted, tolerance)
    close(la.predict(problem.new).variance, wanted.diagonal(dim1=1, dim2=2), tolerance)


@pytest.mark.parametrize("case", dense.CASES)
def test_samples_have_the_covariance(case: str) -> None:
    problem = PROBLEMS["regressor"]()
    la, h, lam = fitted(case, problem, "number")
    count = 40_000
    drawn = la.sample(count, torch.Generator().manual_seed(0))
    deviation = flat(drawn, 1) - problem.theta
    sigma = torch.linalg.inv(h + torch.diag(lam))
    found = deviation.T @ deviation / count
    # The standard error of entry pq is sqrt((σ_pp σ_qq + σ_pq²) / count).
    own = sigma.diagonal()
    error = ((own.unsqueeze(1) * own + sigma.square()) / count).sqrt()
    assert float(((found - sigma) / error).abs().max()) < 6
    assert float((deviation.mean(0) / (own / count).sqrt()).abs().max()) < 6


@pytest.mark.parametrize("case", dense.CASES)
def test_curvature_that_overflowed_is_refused(case: str) -> None:
    """Whatever the posterior is asked for: states that files or sums bring may be so."""
    problem = PROBLEMS["regressor"]()
    structure, options = dense.CASES[case]
    la = lk.Laplace(problem.model, "gaussian", structure, **options)  # pyright: ignore[reportArgumentType]
    la.fit(problem.batches)
    assert la.measured is not None
    pack, unpack = la._structure.pack, la._structure.unpack
    for broken in (torch.inf, torch.nan):
        packed = pack(la.measured.state)
        tensors = {
            name: value.masked_fill(value == value.flatten()[-1], broken)
            if value.is_floating_point() else value
            for name, value in packed.tensors.items()
        }  # fmt: skip
        state = unpack(replace(packed, tensors=tensors), None)
        for ask in ("log_determinant", "variance", "blocks", "sample"):
            with pytest.raises(lk.Refused, match="not finite"):
                posterior = la._decomposed(state)
                getattr(posterior, ask)(*([2] if ask == "sample" else []))


@pytest.mark.parametrize("by", ["variance", "outputs", "scores"])
def test_entries_of_a_subnetwork(by: str) -> None:
    """Those of largest score, with the noise and the prior that the fit begins with."""
    problem, variance = PROBLEMS["regressor"](), 0.2
    likelihood = lk.likelihoods.Gaussian(variance)
    parameters = dict(problem.model.named_parameters())
    prior: dict[str, float | Tensor] = {n: 0.1 * 3.0**k for k, n in enumerate(parameters)}
    lam = torch.cat([torch.full((p.numel(),), float(prior[n])) for n, p in parameters.items()])
    j = problem.jacobian.flatten(0, 1)
    marginal = 1 / (problem.ggn().diagonal() / variance + lam)
    scores = {"variance": marginal, "outputs": marginal * j.square().sum(0)}
    torch.manual_seed(0)
    scores["scores"] = torch.rand_like(marginal)
    by_name, start = {}, 0
    for name, p in parameters.items():
        by_name[name] = scores[by][start : start + p.numel()].reshape(p.shape)
        start += p.numel()
    options: dict[str, Any] = {
        "variance": {},
        "outputs": {"by": "outputs", "inputs": problem.new},
        "scores": {"by": by_name},
    }[by]
    la = lk.Laplace(problem.model, likelihood, "subnetwork", prior=prior, size=9, **options)
    la.fit(problem.batches)
    found = torch.cat([(v > 0).flatten() for v in la.posterior.variance().values()])
    assert found.nonzero().flatten().tolist() == sorted(scores[by].topk(9).indices.tolist())
    # After a change of the noise the next fit ranks by the new one.
    la.scale = la.scale * 1e-3
    if by == "variance":
        wide = 1 / (1e-3 * problem.ggn().diagonal() / variance + lam)
        la.fit(problem.batches)
        found = torch.cat([(v > 0).flatten() for v in la.posterior.variance().values()])
        assert found.nonzero().flatten().tolist() == sorted(wide.topk(9).indices.tolist())
        assert set(wide.topk(9).indices.tolist()) != set(marginal.topk(9).indices.tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "size"}, "by='size'"),
        ({"by": "outputs"}, "needs inputs="),
        ({"inputs": torch.zeros(1)}, "needs inputs="),
        ({"by": {}}, "a tensor .* of scores of"),
    ],
)
def test_what_subnetworks_refuse(options: dict[str, Any], message: str) -> None:
    problem = PROBLEMS["regressor"]()
    with pytest.raises(ValueError, match=message):
        lk.Laplace(problem.model, "gaussian", "subnetwork", size=3, **options).fit(problem.batches)


def test_weights_along_training_have_mean_and_variance() -> None:
    model, seen = nn.Linear(3, 2), []
    swag = Swag(model)
    with pytest.raises(RuntimeError, match="0 updates"):
        swag.variance()
    torch.manual_seed(0)
    for _ in range(5):
        with torch.no_grad():
            model.weight.normal_(100, 1)
        swag.update()
        seen.append(model.weight.detach().clone())
    weights = torch.stack(seen)
    torch.testing.assert_close(swag.mean()["weight"], weights.mean(0))
    torch.testing.assert_close(swag.variance()["weight"], weights.double().var(0).float())
    assert not swag.variance()["bias"].any()


@pytest.mark.parametrize("given", [True, False])
def test_subnetwork(given: bool) -> None:
    problem = PROBLEMS["classifier"]()
    h, lam = problem.ggn(), 0.3
    chosen = (h.diagonal() + lam).argsort()[:17].sort().values
    options: dict[str, Any] = {"size": 17}
    if given:
        entries, start = {}, 0
        for name, p in problem.model.named_parameters():
            inside = (chosen >= start) & (chosen < start + p.numel())
            entries[name] = (chosen[inside] - start).tolist()
            start += p.numel()
        options = {"entries": entries}
    la = lk.Laplace(problem.model, "categorical", "subnetwork", prior=lam, **options)
    la.fit(problem.batches)
    a = h[chosen][:, chosen] + lam * torch.eye(17, dtype=h.dtype)
    sigma = torch.zeros_like(h)
    sigma[chosen.unsqueeze(1), chosen] = torch.linalg.inv(a)
    theta = problem.theta[chosen]
    close(flat(la.posterior.variance()), sigma.diagonal())
    wanted = -problem.nll() - 0.5 * (lam * theta @ theta + torch.logdet(a) - 17 * math.log(lam))
    close(la.log_evidence(), wanted)
    j = problem.jacobian
    close(la.predict(problem.new).variance, (j @ sigma @ j.mT).diagonal(dim1=1, dim2=2))
    drawn = flat(la.sample(5), 1) - problem.theta
    assert bool((drawn[:, chosen] != 0).all())
    drawn[:, chosen] = 0
    assert not bool(drawn.any())


@pytest.mark.parametrize("case", ["diag", "kron", "full"])
def test_last_layer(case: str) -> None:
    problem = PROBLEMS["classifier"]()
    structure, options = dense.CASES[case]
    la = lk.Laplace(problem.model, "categorical", structure, params="6", prior=0.5, **options)  # pyright: ignore[reportArgumentType]
    la.fit(problem.batches)
    h = dense.curvature(case, problem)
    last = slice(len(h) - 57, len(h))
    sigma = torch.linalg.inv(h[last, last] + 0.5 * torch.eye(57))
    j = problem.jacobian[:, :, last]
    wanted = (j @ sigma @ j.mT).diagonal(dim1=1, dim2=2)
    close(la.predict(problem.new).variance, wanted)


@pytest.mark.parametrize(
    "last",
    [nn.ConvTranspose2d(2, 2, 2), nn.Conv2d(2, 2, 2, groups=2), nn.GroupNorm(1, 2), nn.PReLU(2)],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize("structure", ["diag", "full"])
def test_last_layer_of_any_type(last: nn.Module, structure: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh()).double()
    model.add_module("last", copy.deepcopy(last).double())
    x = torch.randn(5, 1, 4, 4, dtype=torch.float64)
    y = model(x).detach()
    la = lk.Laplace(model, "gaussian", structure, params="last", prior=0.5).fit((x, y))
    j, _ = oracle.flat_jacobians(model, x)
    j = j[:, :, -sum(p.numel() for p in last.parameters()) :].detach()
    h = torch.einsum("ndp,ndq->pq", j, j)
    h = torch.diag(h.diagonal()) if structure == "diag" else h
    sigma = torch.linalg.inv(h + 0.5 * torch.eye(len(h), dtype=h.dtype))
    close(la.predict(x).variance.flatten(1), torch.einsum("ndp,pq,ndq->nd", j, sigma, j))


@pytest.mark.parametrize("method", ["mc", "empirical", "approx", "mixed", "hessian"])
def test_methods_of_the_diagonal(method: Any) -> None:
    problem = PROBLEMS["regressor"]()
    la = lk.Laplace(problem.model, "gaussian", "diag", method, prior=10.0).fit(problem.batches)
    data = [(problem.x, problem.y)]
    if method != "mc":
        h = lk.diag(problem.model, data, "gaussian", method).vector()
        close(flat(la.posterior.variance()), 1 / (h + 10))
    again = lk.Laplace(problem.model, "gaussian", "diag", method, prior=10.0).fit(problem.batches)
    assert torch.equal(flat(la.posterior.variance()), flat(again.posterior.variance()))


@pytest.mark.parametrize(
    ("structure", "decomposition"),
    [("full", "cholesky"), ("blocks", "cholesky"), ("function_space", "svd")],
)
def test_a_posterior_is_decomposed_once(
    structure: str, decomposition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = PROBLEMS["classifier"]()
    options: dict[str, Any] = {"by": "layer"} if structure == "blocks" else {}
    la = lk.Laplace(problem.model, problem.likelihood, structure, prior=2.0, **options)
    la.fit((problem.x, problem.y))
    decompose, calls = getattr(torch.linalg, decomposition), []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return decompose(*arguments, **options)

    monkeypatch.setattr(torch.linalg, decomposition, counted)
    first = la.predict(problem.new)
    once = len(calls)
    la.find_optimum([(problem.x, problem.y)])
    assert once > 0 and len(calls) == once
    close(la.predict(problem.new).variance, first.variance)
    # Another prior is another posterior.
    assert bool((la.set_prior(1.0).predict(problem.new).variance > first.variance).all())


@pytest.mark.parametrize("case", ["diag", "kron", "ekfac"])
def test_a_fit_holds_few_batches_and_shows_how_far_it_is(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data larger than memory: batches are let go one after the other."""
    problem = PROBLEMS["classifier"]()
    structure, options = dense.CASES[case]
    made: list[weakref.ref[Tensor]] = []
    most = 0

    class Stream:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            nonlocal most
            for part, labels in zip(problem.x.split(2), problem.y.split(2), strict=True):
                inputs = part.clone()
                made.append(weakref.ref(inputs))
                most = max(most, sum(one() is not None for one in made))
                yield inputs, labels

        def __len__(self) -> int:
            return 6

    arguments: Any = (problem.model, problem.likelihood, structure), options
    la = lk.Laplace(*arguments[0], **arguments[1])
    la.fit(Stream(), progress=True)
    # The one that was just made, and the one before it.
    assert len(made) >= 6 and most <= 2
    assert "6/6" in capsys.readouterr().err
    again = lk.Laplace(*arguments[0], **arguments[1])
    again.fit(list(zip(problem.x.split(2), problem.y.split(2), strict=True)))
    close(flat(la.posterior.variance()), flat(again.posterior.variance()), 1e-12)
