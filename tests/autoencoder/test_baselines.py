"""Autoencoders to compare with: losses, draws and moments by their formulas."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.autoencoder import (
    DropoutAutoencoder,
    EnsembleAutoencoder,
    LaplacianAutoencoder,
    PlainAutoencoder,
    StochasticAutoencoder,
    VariationalAutoencoder,
    side_by_side,
    with_dropout,
)
from tests.autoencoder.problems import dense_networks, shuffled, vectors


def sgd(parameters: list[nn.Parameter]) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, 0.1)


def learned() -> PlainAutoencoder:
    encoder, decoder = dense_networks()
    _, log_variance = dense_networks()
    nn.init.normal_(log_variance[2].weight, std=0.1)  # pyright: ignore
    return PlainAutoencoder(
        encoder, side_by_side(decoder, log_variance), likelihood="heteroscedastic", optimizer=sgd
    )


def variational(**options: Any) -> VariationalAutoencoder:
    encoder, decoder = dense_networks()
    second, _ = dense_networks()
    nn.init.normal_(second[2].weight, std=0.5)  # pyright: ignore
    settings: dict[str, Any] = {"kl_scale": 0.3, "optimizer": sgd, **options}
    return VariationalAutoencoder(side_by_side(encoder, second), decoder, **settings)


def dropout() -> DropoutAutoencoder:
    encoder, decoder = dense_networks()
    return DropoutAutoencoder(
        with_dropout(encoder, 0.5),  # pyright: ignore[reportArgumentType]
        with_dropout(decoder, 0.5),  # pyright: ignore[reportArgumentType]
        optimizer=sgd,
    )


def ensemble() -> EnsembleAutoencoder:
    members = [PlainAutoencoder(*dense_networks(), optimizer=sgd) for _ in range(3)]
    for number, member in enumerate(members):
        for parameter in member.parameters.values():
            parameter.data += 0.1 * number
    return EnsembleAutoencoder(members)


EVERY = {
    "plain": lambda: PlainAutoencoder(*dense_networks(), optimizer=sgd),
    "learned": learned,
    "variational": variational,
    "dropout": dropout,
    "ensemble": ensemble,
    "laplacian": lambda: LaplacianAutoencoder(*dense_networks(), optimizer=sgd),
}


@pytest.mark.parametrize("name", EVERY)
def test_every_autoencoder_has_the_interface(name: str) -> None:
    ae: StochasticAutoencoder = EVERY[name]()
    x = vectors(4)
    state = torch.get_rng_state()
    before = [p.detach().clone() for p in ae.parameters.values()]
    ae.fit(shuffled(vectors(), 4), 2)
    after = ae.parameters.values()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(p.grad is None for p in ae.parameters.values())
    latent, output = ae.latent(x, 5), ae.reconstruct(x, 5)
    assert latent.mean.shape == latent.variance.shape == (4, 2)
    assert output.mean.shape == output.variance.shape == x.shape
    assert bool((output.variance >= 0).all())
    assert ae.decode(latent.mean, 5).mean.shape == x.shape
    assert ae.log_likelihood(x, 5).shape == (4,)
    assert torch.equal(torch.get_rng_state(), state)


def test_plain_step_is_a_step_of_the_gradient() -> None:
    ae = PlainAutoencoder(*dense_networks(), optimizer=sgd)
    other = copy.deepcopy(ae.model)
    x = vectors()
    loss = (other(x) - x).square().sum() / (2 * len(x))
    loss.backward()
    assert torch.allclose(ae.step(x), loss)
    for mine, theirs in zip(ae.model.parameters(), other.parameters(), strict=True):
        assert theirs.grad is not None
        assert torch.allclose(mine, theirs - 0.1 * theirs.grad)
    assert torch.count_nonzero(ae.reconstruct(x).variance) == 0


def test_learned_variance_is_in_the_output() -> None:
    ae, x = learned(), vectors(4)
    mean, log_variance = ae.model(x).chunk(2, 1)
    found = ae.reconstruct(x)
    assert torch.allclose(found.mean, mean)
    assert torch.allclose(found.variance, log_variance.exp())
    normal = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    assert torch.allclose(ae.log_likelihood(x), normal.log_prob(x).sum(1))


def test_variational_loss_is_the_bound() -> None:
    ae, x = variational(), vectors(4)
    mean, log_variance = ae.encoder(x).chunk(2, 1)
    twin = torch.Generator().manual_seed(0)
    std = (0.5 * log_variance).exp()
    z = mean + std * torch.randn(1, *mean.shape, dtype=x.dtype, generator=twin)[0]
    posterior = torch.distributions.Normal(mean, std)
    prior = torch.distributions.Normal(torch.zeros_like(mean), 1.0)
    divergence = torch.distributions.kl_divergence(posterior, prior).sum()
    expected = ((ae.decoder(z) - x).square().sum() / 2 + 0.3 * divergence) / len(x)
    assert torch.allclose(ae.loss(x, torch.Generator().manual_seed(0)), expected)


def test_variational_draws_are_from_the_posterior() -> None:
    ae, x = variational(), vectors(2)
    mean, log_variance = ae.posterior(x)
    found = ae.latent(x, 8000)
    assert torch.allclose(found.variance, log_variance.exp(), rtol=5 * (2 / 8000) ** 0.5)
    error = (found.mean - mean).abs() / (0.5 * log_variance).exp()
    assert float(error.detach().max()) < 5 / 8000**0.5
    draws = ae.draws(x, 3)
    assert torch.allclose(draws.output[1], ae.decoder(draws.latent[1]))


def test_dropout_is_between_trained_layers_and_stays_on() -> None:
    ae, x = dropout(), vectors(3)
    kinds = [type(m).__name__ for m in ae.encoder.children()]
    assert kinds == ["Linear", "Tanh", "Dropout", "Linear"]
    assert float(ae.latent(x, 20).variance.min()) > 0
    with pytest.raises(ValueError, match="with_dropout"):
        DropoutAutoencoder(*dense_networks())


def test_dropped_units_give_the_exact_moments() -> None:
    """z = W m h / (1 - p) with masks m: the variance is p / (1 - p) sum w² h²."""
    ae, x = dropout(), vectors(2)
    h = torch.tanh(ae.encoder[0](x))  # pyright: ignore
    weight = ae.encoder[3].weight  # pyright: ignore
    variance = h.square() @ weight.square().T
    assert torch.allclose(ae.latent(x, 8000).variance, variance, rtol=0.1)


def test_ensemble_draws_are_its_members() -> None:
    ae, x = ensemble(), vectors(3)
    outputs = torch.stack([member.model(x) for member in ae.members])
    found = ae.reconstruct(x, 100)
    assert torch.allclose(found.mean, outputs.mean(0))
    assert torch.allclose(found.variance, outputs.var(0))
    with pytest.raises(ValueError, match="two at least"):
        EnsembleAutoencoder(ae.members[:1])


@pytest.mark.parametrize("name", ["variational", "dropout", "ensemble"])
def test_training_goes_on_to_the_same_bits(name: str, tmp_path: Any) -> None:
    def fit(epochs: int, checkpoint: Any = None) -> StochasticAutoencoder:
        ae = EVERY[name]()
        return ae.fit(shuffled(vectors(), 4), epochs, checkpoint=checkpoint, every=2)

    whole = fit(3)
    fit(1, tmp_path / "half")
    again = fit(3, tmp_path / "half")
    pairs = zip(whole.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_validation_does_not_change_training() -> None:
    def fit(validation: Tensor | None) -> StochasticAutoencoder:
        data = None if validation is None else [validation]
        return variational().fit(shuffled(vectors(), 4), 2, validation=data)

    with_it, without = fit(vectors(3)), fit(None)
    pairs = zip(with_it.model.parameters(), without.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert with_it.history[0].validation is not None


def test_top_level_name() -> None:
    assert lk.LaplacianAutoencoder is LaplacianAutoencoder


@pytest.mark.parametrize("dim", [1, -1])
def test_learned_variance_lies_where_the_likelihood_says(dim: int) -> None:
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(3, 2).double(), nn.Linear(2, 6).double()
    model = PlainAutoencoder(
        encoder, decoder, likelihood=lk.likelihoods.HeteroscedasticGaussian(dim=dim)
    )
    x = torch.rand(4, 3).double()
    found = model.reconstruct(x)
    output = decoder(encoder(x)).detach()
    torch.testing.assert_close(found.mean, output[:, :3])
    torch.testing.assert_close(found.variance, output[:, 3:].exp())
