"""Steps, post-hoc fits and predictions against float64 autograd and plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import lapkernels as lk
from tests.autoencoder.problems import conv_networks, dense_networks, images, vectors


def sgd(parameters: list[nn.Parameter]) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, 0.1)


def autoencoder(networks: Callable[[], Any] = dense_networks, **options: Any) -> Any:
    encoder, decoder = networks()
    settings: dict[str, Any] = {
        "update": "online", "initial_precision": 3.0, "optimizer": sgd, **options
    }  # fmt: skip
    return lk.LaplacianAutoencoder(encoder, decoder, **settings)


def jacobians(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """J of all outputs, [N * out, *shape] by parameter name."""

    def flat(w: dict[str, Tensor]) -> Tensor:
        return functional_call(model, w, (x,)).flatten()

    return jacrev(flat)(weights)  # pyright: ignore[reportReturnType]


def detached(ae: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in ae.parameters.items()}


def drawn(ae: Any) -> dict[str, Tensor]:
    """The weights that the next step will draw, from the formula."""
    twin = torch.Generator()
    twin.set_state(ae.generator.get_state())
    return {
        name: mean
        + torch.randn(mean.shape, dtype=mean.dtype, generator=twin)
        / (ae.precision[name] + ae.prior).sqrt()
        for name, mean in detached(ae).items()
    }


@pytest.mark.parametrize(
    ("update", "decay", "scale"),
    [
        ("online", 0.9, 1.0),
        ("redux", 0.0, 1.0),
        ("adaptive_newton", 1.0, 0.1),
        ("natural_gradient", 0.9, 0.1),
    ],
)
@pytest.mark.parametrize("at", ["sample", "mean"])
def test_step_is_the_formula(update: str, decay: float, scale: float, at: str) -> None:
    variance = 0.5
    ae = autoencoder(
        update=update, memory=0.1, prior=0.7, data_size=60, curvature_at=at,
        likelihood=lk.likelihoods.Gaussian(variance),
    )  # fmt: skip
    x = vectors()
    for _ in range(2):
        means, precision, theta = detached(ae), ae.precision, drawn(ae)
        precision = {name: h.clone() for name, h in precision.items()}
        found = ae.step(x)
        j = jacobians(ae.model, theta, x)
        residual = (functional_call(ae.model, theta, (x,)) - x).flatten()
        assert torch.allclose(found, residual.square().sum() / (2 * variance * len(x)))
        curvature = j if at == "sample" else jacobians(ae.model, means, x)
        for name, mean in means.items():
            gradient = torch.tensordot(residual, j[name], 1) / (variance * len(x))
            gradient += 0.7 * mean / 60
            assert torch.allclose(ae.parameters[name], mean - 0.1 * gradient, rtol=1e-10)
            d = curvature[name].square().sum(0) / variance * (60 / len(x))
            expected = decay * precision[name] + scale * d
            assert torch.allclose(ae.precision[name], expected, rtol=1e-9)


def test_bernoulli_step() -> None:
    ae = autoencoder(likelihood="bernoulli", memory=0.2)
    x, theta = vectors(), drawn(ae)
    before = {name: h.clone() for name, h in ae.precision.items()}
    loss = ae.step(x)
    f = functional_call(ae.model, theta, (x,))
    nll = nn.functional.binary_cross_entropy_with_logits(f, x, reduction="sum")
    assert torch.allclose(loss, nll / len(x))
    weight = (f.sigmoid() * (1 - f.sigmoid())).flatten()
    for name, j in jacobians(ae.model, theta, x).items():
        d = torch.tensordot(weight, j.square(), 1)
        assert torch.allclose(ae.precision[name], 0.8 * before[name] + d, rtol=1e-9)


def chosen_by(model: Any, x: Tensor, variance: float) -> tuple[float, float]:
    """N and H₀ by the formulas: draws add 1/500 of the squared error, P/N and Σ J²/H₀."""
    j = jacobians(model.model, detached(model), x)
    signal = float((x - x.mean(0)).square().sum()) / variance / len(x)
    slope = sum(float(value.square().sum()) for value in j.values()) / variance / len(x)
    weights = sum(p.numel() for p in model.parameters.values())
    size = 500 * weights / signal
    return size, size * slope / weights


@pytest.mark.filterwarnings("error")
def test_defaults_are_chosen_by_the_first_batch(tmp_path: Any) -> None:
    """Nothing warns, and the chosen numbers are in files."""
    variance, x = 0.3, vectors()

    def made() -> Any:
        likelihood = lk.likelihoods.Gaussian(variance)
        encoder, decoder = dense_networks()
        return lk.LaplacianAutoencoder(
            encoder, decoder, likelihood=likelihood, threshold=torch.inf, optimizer=sgd
        )

    ae = made()
    assert (ae.update, ae.method, ae.prior) == ("natural_gradient", "mixed", 1.0)
    size, start = chosen_by(ae, x, variance)
    twin = made()
    twin.precision = {name: torch.full_like(h, start) for name, h in ae.precision.items()}
    theta = drawn(twin)
    ae.step(x)
    for name, j in jacobians(ae.model, theta, x).items():
        d = j.square().sum(0) / variance
        assert torch.allclose(ae.precision[name], 0.98 * start + 0.02 * size / len(x) * d)
    ae.save(tmp_path / "ae.safetensors")
    other = made().load(tmp_path / "ae.safetensors")
    other.generator.set_state(ae.generator.get_state())
    ae.step(x)
    other.step(x)
    for name, h in ae.precision.items():
        assert torch.equal(other.precision[name], h)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update": "online", "initial_precision": 1e-2, "memory": 1e-4}, "first draws"),
        ({"update": "online", "initial_precision": 1e4, "memory": 0.9}, "has settled"),
        ({"update": "natural_gradient", "data_size": 1}, "has settled"),
    ],
)
def test_draws_that_drown_the_signal_are_told(options: dict[str, Any], message: str) -> None:
    encoder, decoder = dense_networks()
    ae = lk.LaplacianAutoencoder(encoder, decoder, **options)
    with pytest.warns(UserWarning, match=message):
        ae.step(vectors())


def test_failed_first_step_chooses_nothing() -> None:
    encoder, decoder = dense_networks()
    ae = lk.LaplacianAutoencoder(encoder, decoder)
    before = {name: h.clone() for name, h in ae.state().items()}
    with pytest.raises(ValueError):
        ae.step(torch.full((2, 6), float("nan"), dtype=torch.float64))
    assert all(torch.equal(ae.state()[name], h) for name, h in before.items())


def test_conv_step_measures_the_mixed_diagonal_at_the_draw() -> None:
    ae = autoencoder(conv_networks, threshold=4)
    x, theta = images(), drawn(ae)
    before = {name: h.clone() for name, h in ae.precision.items()}
    ae.step(x)
    other = autoencoder(conv_networks)
    other.model.load_state_dict(theta)
    d = lk.diag(other.model, x, method="mixed", threshold=4)
    exact = lk.diag(other.model, x, method="exact")
    for name, h in ae.precision.items():
        assert torch.allclose(h, (1 - 1e-4) * before[name] + d[name], rtol=1e-10)
    assert not torch.allclose(d["encoder.0.weight"], exact["encoder.0.weight"], rtol=1e-3)


def test_step_leaves_nothing_behind() -> None:
    ae = autoencoder()
    state = torch.get_rng_state()
    pointers = [p.data_ptr() for p in ae.parameters.values()]
    ae.step(vectors())
    assert torch.equal(torch.get_rng_state(), state)
    assert [p.data_ptr() for p in ae.parameters.values()] == pointers
    assert all(p.grad is None for p in ae.parameters.values())
    with pytest.raises(ValueError):
        ae.step(torch.full((2, 6), float("nan"), dtype=torch.float64))
    assert [p.data_ptr() for p in ae.parameters.values()] == pointers


@pytest.mark.parametrize("networks", [dense_networks, conv_networks])
def test_draws_are_those_of_a_loop(networks: Callable[[], Any]) -> None:
    ae = autoencoder(networks)
    x = vectors(3) if networks is dense_networks else images(3)
    state = ae.generator.get_state()
    weights = ae.sample(4)
    ae.generator.set_state(state)
    found = ae.draws(x, 4)
    for s in range(4):
        one = {name: value[s] for name, value in weights.items()}
        output = functional_call(ae.model, one, (x,))
        assert torch.allclose(found.output[s], output)
        encoder = {n.removeprefix("encoder."): v for n, v in one.items() if "encoder" in n}
        assert torch.allclose(found.latent[s], functional_call(ae.encoder, encoder, (x,)))


def test_images_of_any_size_and_channels() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 2, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))
    decoder = nn.Sequential(nn.Linear(2, 3 * 9 * 6), nn.Unflatten(1, (3, 9, 6)))
    x = torch.rand(4, 3, 9, 6)
    ae = lk.LaplacianAutoencoder(encoder, decoder, initial_precision=50.0)
    ae.step(x)
    found, linear = ae.reconstruct(x, 3), ae.reconstruct_linearised(x)
    for moments in (found, linear):
        assert moments.mean.shape == moments.variance.shape == x.shape
        assert float(moments.variance.min()) > 0


def test_drawn_weights_have_the_posterior_moments() -> None:
    ae = autoencoder(prior=2.0, data_size=10)
    ae.precision["encoder.0.weight"].copy_(torch.arange(1.0, 25.0).view(4, 6))
    weights = ae.sample(4000)["encoder.0.weight"]
    standard = (weights - ae.parameters["encoder.0.weight"].detach()) * (
        ae.precision["encoder.0.weight"] + 2
    ).sqrt()
    assert float(standard.mean(0).abs().max()) < 5 / 4000**0.5
    assert float((standard.var(0) - 1).abs().max()) < 5 * (2 / 4000) ** 0.5


def test_moments_of_a_linear_autoencoder_in_closed_form() -> None:
    """z = W x with independent entries of W: the variance is x² / h, and sampling finds it."""
    encoder, decoder = (nn.Linear(3, 2, bias=False).double() for _ in range(2))
    decoder = nn.Linear(2, 3, bias=False).double()
    ae = lk.LaplacianAutoencoder(encoder, decoder, initial_precision=5.0, prior=0.0)
    x = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], dtype=torch.float64)
    variance = x.square().sum(1, keepdim=True).expand(2, 2) / 5
    assert torch.allclose(ae.latent_linearised(x).variance, variance)
    assert torch.allclose(ae.latent_linearised(x).mean, encoder(x))
    found = ae.latent(x, 8000)
    assert torch.allclose(found.variance, variance, rtol=5 * (2 / 8000) ** 0.5)
    z = ae.encoder(x).detach()
    outputs = ae.decode(z, 8000).variance
    expected = z.square().sum(1, keepdim=True).expand(2, 3) / 5
    assert torch.allclose(outputs, expected, rtol=5 * (2 / 8000) ** 0.5)


def test_linearised_reconstruction_is_the_jacobian_product() -> None:
    ae = autoencoder(conv_networks, prior=1.0, data_size=5)
    x = images(2)
    total = sum(
        (j.square() / (ae.precision[name] + 1)).flatten(1).sum(1)
        for name, j in jacobians(ae.model, detached(ae), x).items()
    )
    found = ae.reconstruct_linearised(x)
    assert torch.allclose(found.variance.flatten(), torch.as_tensor(total), rtol=1e-9)
    assert torch.allclose(found.mean, ae.model(x))


def test_moments_do_not_depend_on_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = vectors(4)
    ae = autoencoder()
    state = ae.generator.get_state()
    draws = torch.cat([ae.draws(x, count).output for count in (3, 3, 1)])
    ae.generator.set_state(state)
    size = 8 * (sum(p.numel() for p in ae.parameters.values()) + 16 * x.numel())
    monkeypatch.setattr("lapkernels.autoencoder.interface.DRAW_BYTES", 3 * size)
    found = ae.reconstruct(x, 7)
    assert torch.allclose(found.mean, draws.mean(0))
    assert torch.allclose(found.variance, draws.var(0))


def test_log_likelihood_is_the_mean_over_draws() -> None:
    x = vectors(4)
    for likelihood, density in (
        (lk.likelihoods.Gaussian(0.3), lambda f: torch.distributions.Normal(f, 0.3**0.5)),
        ("bernoulli", lambda f: torch.distributions.Bernoulli(logits=f, validate_args=False)),
    ):
        ae = autoencoder(likelihood=likelihood)
        state = ae.generator.get_state()
        found = ae.log_likelihood(x, 6)
        ae.generator.set_state(state)
        output = ae.draws(x, 6).output
        assert torch.allclose(found, density(output).log_prob(x).sum(-1).mean(0))


def test_bernoulli_reconstructions_are_probabilities() -> None:
    ae = autoencoder(likelihood="bernoulli")
    x = vectors(4)
    state = ae.generator.get_state()
    found = ae.reconstruct(x, 6)
    ae.generator.set_state(state)
    p = ae.draws(x, 6).output.sigmoid()
    assert torch.allclose(found.mean, p.mean(0))
    assert torch.allclose(found.variance, p.var(0))


@pytest.mark.parametrize("tune", [True, False])
def test_post_hoc_is_laplace_around_the_mean(tune: bool) -> None:
    ae = autoencoder()
    x = vectors()
    la = ae.fit_post_hoc([x[:7], (x[7:], None)], tune=tune)
    prior = float(la.prior.values[""])
    assert tune == (prior != 1.0)
    for name, j in jacobians(ae.model, detached(ae), x).items():
        assert torch.allclose(ae.variance[name], 1 / (j.square().sum(0) + prior), rtol=1e-9)


def test_save_and_load(tmp_path: Any) -> None:
    ae = autoencoder()
    ae.step(vectors())
    ae.save(tmp_path / "ae.safetensors")
    other = autoencoder().load(tmp_path / "ae.safetensors")
    assert torch.equal(other.model[0][0].weight, ae.model[0][0].weight)
    for name, h in ae.precision.items():
        assert torch.equal(other.precision[name], h)
    with pytest.raises(ValueError, match="settings"):
        autoencoder(memory=0.5).load(tmp_path / "ae.safetensors")
    with pytest.raises(ValueError, match="no checkpoint"):
        autoencoder().fit([vectors()], 1, checkpoint=tmp_path / "ae.safetensors")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 1.5}, "memory=1.5"),
        ({"update": "adam"}, "update='adam'"),
        ({"method": "hessian"}, "hessian"),
        ({"initial_precision": 0.0}, "initial_precision=0.0"),
        ({"update": "redux"}, "needs prior"),
        ({"prior": 1.0}, "needs data_size"),
        ({"prior": -1.0}, "prior=-1.0"),
        ({"data_size": 0}, "data_size=0"),
        ({"curvature_at": "there"}, "curvature_at='there'"),
        ({"likelihood": "categorical"}, "Categorical"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        autoencoder(**options)
