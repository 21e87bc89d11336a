"""Predictive distributions: links, shapes, ways, and what is refused."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace.predictive import links
from tests.laplace.problems import classifier, regressor


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def gaussian(classes: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    root = 0.5 * torch.randn(3, classes, classes, dtype=torch.float64)
    return torch.randn(3, classes, dtype=torch.float64), root @ root.mT


def expected_softmax(mean: Tensor, covariance: Tensor) -> Tensor:
    """By many draws."""
    generator = torch.Generator().manual_seed(0)
    drawn = links.gaussian_samples(mean, covariance, 200_000, generator)
    return drawn.softmax(-1).mean(0)


@pytest.mark.parametrize("link", ["mean_field", "probit"])
def test_links_are_nearer_to_the_integral_than_the_mean_is(link: str) -> None:
    mean, covariance = gaussian()
    wanted = expected_softmax(mean, covariance)
    if link == "probit":
        found = links.probit(mean, covariance.diagonal(dim1=1, dim2=2)).softmax(-1)
    else:
        found = links.mean_field(mean, covariance)
    close(found.sum(-1), torch.ones(3, dtype=torch.float64))
    assert (found - wanted).abs().max() < (mean.softmax(-1) - wanted).abs().max()


def test_links_of_certain_logits_are_the_softmax() -> None:
    mean, covariance = gaussian()
    close(links.mean_field(mean, 0 * covariance), mean.softmax(-1))
    close(links.probit(mean, torch.zeros_like(mean)).softmax(-1), mean.softmax(-1))
    close(links.gaussian_samples(mean, 0 * covariance, 2, None)[1], mean)


def test_mean_field_of_two_classes_is_the_probit_of_their_difference() -> None:
    mean, covariance = gaussian(2)
    variance = (
        torch.tensor([1.0, -1.0], dtype=torch.float64)
        @ covariance
        @ torch.tensor([1.0, -1.0], dtype=torch.float64)
    )
    wanted = links.probit(mean[:, 0] - mean[:, 1], variance).sigmoid()
    close(links.mean_field(mean, covariance)[:, 0], wanted)


def test_bridge_against_its_formula() -> None:
    """Hobbhahn et al. 2022, on logits projected to sum zero."""
    mean, s = gaussian()
    ones = torch.ones(4, dtype=torch.float64)
    for m, c, found in zip(mean, s, links.bridge(mean, s), strict=True):
        total = ones @ c @ ones
        m = m - c @ ones * (ones @ m) / total
        c = c - torch.outer(c @ ones, c @ ones) / total
        alpha = (1 - 2 / 4 + m.exp() / 16 * (-m).exp().sum()) / c.diagonal()
        close(found, alpha / alpha.sum())


@pytest.mark.parametrize("link", ["mc", "bridge", "mean_field"])
def test_dense_classes(link: Any) -> None:
    """Class probabilities of every pixel are those of its own covariance."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 1))
    model = model.double().eval()
    x = torch.randn(2, 1, 3, 2, dtype=torch.float64)
    la = lk.Laplace(model, "categorical", "diag").fit((x, torch.randint(4, (2, 3, 2))))
    found = la.predict(x, link=link, samples=50, generator=torch.Generator().manual_seed(1))
    assert found.probabilities.shape == (2, 4, 3, 2)
    close(found.probabilities.sum(1), torch.ones(2, 3, 2, dtype=torch.float64))
    joint = la.predict(
        x, joint=True, link=link, samples=50, generator=torch.Generator().manual_seed(1)
    )
    close(joint.probabilities, found.probabilities)
    assert joint.covariance is not None
    pixel = torch.tensor([3, 9, 15, 21])  # row 1, column 1
    if link == "bridge":
        m, c = joint.mean[:, :, 1, 1], joint.covariance[:, pixel.unsqueeze(1), pixel]
        close(found.probabilities[:, :, 1, 1], links.bridge(m, c))
    y = torch.randint(4, (2, 3, 2))
    wanted = -nn.functional.nll_loss(found.probabilities.log(), y, reduction="none")
    close(found.log_likelihood(y), wanted)


def test_selected_outputs() -> None:
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical", "full").fit(problem.batches)
    everything = la.predict(problem.new, joint=True)
    assert everything.covariance is not None
    picked = torch.tensor([[0, 2], [1, 0], [2, 1], [1, 1]])
    found = la.predict(problem.new, outputs=picked, joint=True)
    assert found.covariance is not None
    close(found.mean, everything.mean.gather(1, picked))
    close(found.variance, everything.variance.gather(1, picked))
    for n, index in enumerate(picked):
        close(found.covariance[n], everything.covariance[n][index][:, index])


def test_selected_outputs_have_their_own_noise() -> None:
    problem = classifier()
    variance = torch.tensor([0.1, 2.0, 0.5], dtype=torch.float64)
    likelihood = lk.likelihoods.Gaussian(variance)
    y = torch.randn(12, 3, dtype=torch.float64)
    la = lk.Laplace(problem.model, likelihood).fit((problem.x, y))
    everything, picked = la.predict(problem.x), torch.tensor([2, 0, 1])
    found = la.predict(problem.x, outputs=picked)
    close(found.noise, everything.noise[:, picked])
    close(found.log_likelihood(y[:, picked]), everything.log_likelihood(y)[:, picked])
    each = torch.randint(3, (12, 2))
    close(la.predict(problem.x, outputs=each).noise, everything.noise.gather(1, each))


def test_single_logits_have_no_probabilities() -> None:
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical").fit(problem.batches)
    found = la.predict(problem.new, outputs=torch.tensor([0, 2]))
    with pytest.raises(AttributeError, match=r"output=lambda f: f\[:, :, chosen\]"):
        _ = found.probabilities
    with pytest.raises(AttributeError, match="picked logits one by one"):
        found.log_likelihood(torch.zeros(4))
    # Those of independent outputs are as they are among all.
    y = torch.randint(2, (12, 3)).double()
    la = lk.Laplace(problem.model, "bernoulli").fit((problem.x, y))
    picked = la.predict(problem.new, outputs=torch.tensor([0, 2])).probabilities
    close(picked, la.predict(problem.new).probabilities[:, [0, 2]])


class Heads(nn.Module):
    """Logits and offsets of twelve anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh())
        self.heads = nn.ModuleDict({"logits": nn.Conv2d(4, 3, 1), "offsets": nn.Conv2d(4, 4, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x)
        return {name: head(h).flatten(2) for name, head in self.heads.items()}


@pytest.mark.parametrize("link", ["probit", "mean_field", "bridge"])
def test_chosen_boxes_of_a_detector(link: Any) -> None:
    model, x = Heads().double().eval(), torch.randn(2, 1, 3, 4, dtype=torch.float64)
    y = torch.randint(3, (2, 12))
    la = lk.Laplace(model, "categorical", "kron", "exact", output="logits").fit((x, y))
    chosen = torch.tensor([7, 2])
    everything = la.predict(x, link=link)
    found = la.predict(x, link=link, output=lambda f: f["logits"][:, :, chosen])
    close(found.probabilities, everything.probabilities[:, :, chosen])
    close(found.variance, everything.variance[:, :, chosen])
    # The offsets of the same boxes, under the same posterior.
    exact = lk.Laplace(model, "categorical", "full", output="logits").fit((x, y))
    joint = exact.predict(x, output=lambda f: f["offsets"][:, :, chosen], joint=True)
    j = torch.func.jacrev(
        lambda p: torch.func.functional_call(model, p, x)["offsets"][:, :, chosen]
    )(dict(model.named_parameters()))
    rows = torch.cat([value.flatten(1, 2).flatten(2) for value in j.values()], 2).detach()
    h = lk.full(model, (x, y), "categorical", output="logits").matrix
    assert joint.covariance is not None
    close(joint.covariance, rows @ torch.linalg.inv(h + torch.eye(len(h))) @ rows.mT)


def test_sampled_weights() -> None:
    """For a linear model the average over drawn weights is the linearised predictive."""
    model = nn.Linear(3, 2).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    la = lk.Laplace(model, "gaussian", "full").fit((x, torch.randn(20, 2, dtype=torch.float64)))
    wanted = la.predict(x[:4])
    generator = torch.Generator().manual_seed(0)
    found = la.predict(x[:4], how="weights", samples=4000, generator=generator)
    error = wanted.std / 4000**0.5
    assert float(((found.mean - wanted.mean) / error).abs().max()) < 5
    assert float((found.variance / wanted.variance - 1).abs().max()) < 5 * (2 / 4000) ** 0.5
    assert found.expected is not None
    close(found.expected, found.mean)


def test_sampled_weights_average_probabilities() -> None:
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical", "kron", "exact").fit(problem.batches)
    found = la.predict(
        problem.new, how="weights", samples=5, generator=torch.Generator().manual_seed(2)
    )
    generator = torch.Generator().manual_seed(2)
    outputs = []
    for _ in range(5):
        values = {name: v[0] for name, v in la.sample(1, generator).items()}
        outputs.append(torch.func.functional_call(problem.model, values, problem.new).detach())
    f = torch.stack(outputs)
    close(found.probabilities, f.softmax(2).mean(0))
    close(found.mean, f.mean(0))
    close(found.variance, f.var(0))


def test_propagated() -> None:
    problem = regressor()
    la = lk.Laplace(problem.model, "gaussian", "kron", "exact").fit(problem.batches)
    wanted = lk.propagated_variance(problem.model, problem.new, la.posterior.variance())
    close(la.predict(problem.new, how="propagated").variance, wanted)


def test_counts_and_binary() -> None:
    problem = regressor()
    y = torch.randint(2, (12, 2)).double()
    la = lk.Laplace(problem.model, "poisson", "full").fit((problem.x, y))
    found = la.predict(problem.new)
    assert found.expected is not None
    close(found.expected, (found.mean + found.variance / 2).exp())
    la = lk.Laplace(problem.model, "bernoulli", "full").fit((problem.x, y))
    found = la.predict(
        problem.new, link="mc", samples=20_000, generator=torch.Generator().manual_seed(0)
    )
    close(found.probabilities, la.predict(problem.new).probabilities, 0.02)
    p = found.probabilities[0, 0]
    close(found.log_likelihood(torch.ones(4, 2).double())[0, 0], p.log())
    with pytest.raises(ValueError, match="is for classes"):
        la.predict(problem.new, link="bridge")


def test_observation_operator() -> None:
    """Data that see a linear map of the output; predictions of the output itself."""
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 5)).double()
    a = torch.randn(5, 2, dtype=torch.float64)
    x, noise = torch.randn(3, 2, dtype=torch.float64), 0.1
    y = model(x).detach() @ a
    la = lk.Laplace(
        model, lk.likelihoods.Gaussian(noise), "function_space", output=lambda f: f @ a
    ).fit((x, y))
    full = lk.Laplace(model, lk.likelihoods.Gaussian(noise), "full", output=lambda f: f @ a)
    found = la.predict(x, output=lambda f: f, joint=True)
    assert found.covariance is not None and found.mean.shape == (3, 5)
    wanted = full.fit((x, y)).predict(x, output=lambda f: f, joint=True).covariance
    assert wanted is not None
    close(found.covariance, wanted)


def test_float32_is_as_good_as_its_rounding() -> None:
    """Ill-conditioned curvature, tiny prior: no NaN, no negative variance, near float64."""
    model = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3))
    x, y = 30 * torch.randn(200, 4), torch.randint(3, (200,))
    new = torch.randn(20, 4)
    cases: dict[str, dict[str, Any]] = {
        "diag": {}, "kron": {"method": "exact"}, "blocks": {"by": "neuron"},
        "full": {}, "function_space": {},
    }  # fmt: skip
    for structure, options in cases.items():
        la = lk.Laplace(model, "categorical", structure, prior=1e-3, **options).fit((x, y))
        p = la.predict(new)
        assert bool(p.variance.isfinite().all()) and bool((p.variance >= 0).all())
        assert bool(p.probabilities.isfinite().all())
        assert bool(la.log_evidence().isfinite())
        for value in la.posterior.variance().values():
            assert bool((value.isfinite() & (value >= 0)).all())
        for value in la.sample(2).values():
            assert bool(value.isfinite().all())
        la.tune(by="evidence", steps=20)
        assert bool(la.predict(new).variance.isfinite().all())


def test_hessian_that_is_no_minimum_is_refused() -> None:
    problem = regressor()
    y = problem.y + 30
    for structure in ("diag", "full"):
        la = lk.Laplace(problem.model, "gaussian", structure, "hessian", prior=1e-3)
        with pytest.raises(lk.Refused, match=r"raise the prior precision.*method='exact'"):
            la.fit((problem.x, y)).predict(problem.new)
        # A stronger prior makes a posterior of the same Hessian.
        strong = lk.Laplace(problem.model, "gaussian", structure, "hessian", prior=1e4)
        assert bool((strong.fit((problem.x, y)).predict(problem.new).variance > 0).all())


HOW: tuple[Any, ...] = ("linearised", "propagated", "weights")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(5)], ids=str)
def test_training_mode_is_refused(layer: nn.Module, how: Any) -> None:
    problem = regressor()
    layer = copy.deepcopy(layer).double()
    model = nn.Sequential(problem.model[0], layer, problem.model[2]).eval()  # pyright: ignore
    la = lk.Laplace(model).fit(problem.batches)
    wanted = la.predict(problem.new, how=how, generator=torch.Generator().manual_seed(0))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    with pytest.raises(lk.Refused, match=r"1 \(.*call model.eval\(\) first"):
        la.predict(problem.new, how=how)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    model.eval()
    found = la.predict(problem.new, how=how, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.variance, wanted.variance)


class Standardised(nn.Module):
    """Standardises its inputs, in place or not."""

    def __init__(self, inner: nn.Module, in_place: bool) -> None:
        super().__init__()
        self.inner, self.in_place = inner, in_place

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.sub_(0.5).div_(0.2) if self.in_place else (x - 0.5) / 0.2)


CALLS: dict[str, Any] = {
    "evidence": lambda la, batch, x: la.log_evidence(),
    **{how: lambda la, batch, x, how=how: la.predict(x, how=how, samples=5).variance
       for how in HOW},
    "mean": lambda la, batch, x: la.predict(x, how="weights", samples=5).mean,
    "optimum": lambda la, batch, x: la.find_optimum([batch]).gradient,
    "tuned": lambda la, batch, x: la.tune([batch], by="linearised", steps=2).prior.values[""],
    "held out": lambda la, batch, x: la.tune(batch).prior.values[""],
    "normalised": lambda la, batch, x: len(lk.Prior.normalised(la.model, x).groups),
    "sample": lambda la, batch, x: la.sample(1)["inner.0.weight"],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:no optimum")
@pytest.mark.parametrize("structure", ["diag", "full", "low_rank", "function_space"])
def test_a_model_that_writes_to_its_inputs(structure: str) -> None:
    problem = regressor()
    options: dict[str, Any] = {"rank": 10} if structure == "low_rank" else {}
    found: list[dict[str, Any]] = []
    for in_place in (False, True):
        torch.manual_seed(0)
        model = Standardised(problem.model, in_place)
        batch, x = (problem.x.clone(), problem.y.clone()), problem.new.clone()
        la = lk.Laplace(model, "gaussian", structure, **options)
        values: dict[str, Any] = {}
        la.fit(batch)
        for name, call in CALLS.items():
            torch.manual_seed(0)
            values[name] = torch.as_tensor(call(la, batch, x))
            assert torch.equal(batch[0], problem.x) and torch.equal(x, problem.new), name
        found.append(values)
    for name, value in found[0].items():
        close(found[1][name], value)


def test_threads_see_the_trained_weights() -> None:
    """Two predict by drawn weights, while a third one runs the model."""
    problem = classifier()
    la = lk.Laplace(problem.model, "categorical", prior=1e-2).fit(problem.batches)
    state = {name: value.clone() for name, value in problem.model.state_dict().items()}
    objects = dict(problem.model.named_parameters())
    wanted = problem.model(problem.new).detach()

    def draw(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return la.predict(problem.new, how="weights", samples=60, generator=generator).mean

    alone = [draw(seed) for seed in range(2)]
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(draw, seed) for seed in range(2)]
        while not all(one.done() for one in running):
            assert torch.equal(problem.model(problem.new), wanted)
            assert dict(problem.model.named_parameters()).keys() == objects.keys()
    for one, mean in zip(running, alone, strict=True):
        assert torch.equal(one.result(), mean)
    for name, parameter in problem.model.named_parameters():
        assert parameter is objects[name]
    assert all(torch.equal(v, state[name]) for name, v in problem.model.state_dict().items())


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("outputs", [(1,), ()], ids=str)
def test_one_logit_is_no_class(outputs: tuple[int, ...], how: Any) -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 1).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).reshape(len(x), *outputs)

    model, x = Head(), torch.randn(6, 3, dtype=torch.float64)
    y = torch.randint(2, (6, *outputs))
    for data in (x, (x, y), (x, y.double())):
        with pytest.raises(ValueError, match='has .*classes.*"bernoulli"'):
            lk.Laplace(model, "classification").fit(data)
    la = lk.Laplace(model, "gaussian").fit((x, y.double()))
    la.fitted_likelihood = lk.likelihoods.Categorical()
    for link in ("probit", "mc", "bridge") if how == "linearised" else ("probit",):
        with pytest.raises(ValueError, match='"bernoulli"'):
            la.predict(x, how=how, link=link)
    lk.Laplace(model, "bernoulli").fit((x, y)).predict(x, how=how)


def test_log_likelihood_of_other_targets() -> None:
    problem = classifier()
    found = lk.Laplace(problem.model, "categorical").fit(problem.batches).predict(problem.x)
    p = found.probabilities
    y = problem.y.clone()
    y[3] = -100
    wanted = nn.functional.nll_loss(p.log(), y, reduction="none")
    close(found.log_likelihood(y), -wanted)
    soft = torch.rand_like(p).softmax(1)
    close(found.log_likelihood(soft), (soft * p.log()).sum(1))
    for bad, error, message in (
        (y + 3, ValueError, "labels 0 to 2"),
        (y[1:], ValueError, "y has shape"),
        (y > 0, TypeError, "torch.bool"),
    ):
        with pytest.raises(error, match=message):
            found.log_likelihood(bad)
    targets = torch.rand_like(p)
    binary = lk.Laplace(problem.model, "bernoulli").fit((problem.x, targets)).predict(problem.x)
    q = binary.probabilities
    close(binary.log_likelihood(targets), -nn.functional.binary_cross_entropy(
        q, targets, reduction="none"))  # fmt: skip
    with pytest.raises(ValueError, match=r"targets in \[0, 1\]"):
        binary.log_likelihood(targets + 1)
    regression = lk.Laplace(problem.model, "gaussian").fit((problem.x, targets)).predict(problem.x)
    with pytest.raises(ValueError, match="y has shape"):
        regression.log_likelihood(targets[:, :1])


def test_refusals() -> None:
    problem = classifier()
    with pytest.raises(ValueError, match="structure='tree' must be one of"):
        lk.Laplace(problem.model, structure="tree")
    with pytest.raises(ValueError, match="structure 'kron' has"):
        lk.Laplace(problem.model, structure="kron", method="approx")
    with pytest.raises(TypeError, match=r"has options .* not \['rank'\]"):
        lk.Laplace(problem.model, structure="diag", rank=3)
    with pytest.raises(ValueError, match="needs rank="):
        lk.Laplace(problem.model, "categorical", "low_rank").fit(problem.batches)
    with pytest.raises(ValueError, match="needs size="):
        lk.Laplace(problem.model, "categorical", "subnetwork").fit(problem.batches)
    la = lk.Laplace(problem.model, "categorical").fit(problem.batches)
    with pytest.raises(ValueError, match="how='guess' must be one of"):
        la.predict(problem.new, how="guess")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="need how='linearised'"):
        la.predict(problem.new, how="weights", joint=True)
    with pytest.raises(AttributeError, match="no additive noise"):
        _ = la.predict(problem.new).noise
    with pytest.raises(ValueError, match="at least two"):
        la.predict(problem.new, how="weights", samples=1)
    random = nn.Sequential(problem.model, nn.Dropout())
    with pytest.raises(lk.Refused, match=r"call model.eval\(\) first"):
        lk.Laplace(random, "categorical").fit(problem.batches)


class Counted(nn.Module):
    """A classifier that counts its forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), [0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        return self.layer(x)


@pytest.mark.parametrize(
    ("structure", "method"),
    [("diag", None), ("diag", "approx"), ("kron", None), ("full", None), ("function_space", None)],
)
def test_fit_and_predict_run_the_model_once_a_batch(structure: str, method: str | None) -> None:
    model, data = Counted().eval(), [(torch.randn(5, 4), torch.arange(5) % 3) for _ in range(3)]
    la = lk.Laplace(model, "classification", structure, method).fit(data)
    # Larger batches are propagated in parts, whose size two samples tell.
    x = data[0][0][:3]
    la.predict(x)
    model.calls[0] = 0
    la.fit(data)
    assert model.calls == [3]
    measured = la._fitted()
    nll = [nn.functional.cross_entropy(model(x), y, reduction="sum").item() for x, y in data]
    assert measured.nll == pytest.approx(sum(nll), rel=1e-5)
    assert (measured.samples, measured.targets) == (15, 15)
    for how in ("linearised", "propagated"):
        model.calls[0] = 0
        found = la.predict(x, how=how)
        assert model.calls == [1]
        close(found.mean, model(x).detach(), 1e-6)
