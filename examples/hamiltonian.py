"""y = x³ + noise, and its posterior by Hamiltonian Monte Carlo, the reference for every other.

The posterior is of a perceptron given as a torch model, with Gaussian prior and noise, drawn by
numpyro's No-U-Turn sampler in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

NOISE = 3.0
# Names of jax.nn and jax.numpy for activations of torch.
ACTIVATIONS = {
    nn.SiLU: "silu",
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Softplus: "softplus",
    nn.GELU: "gelu",
}


def cubic(count: int, seed: int = 0, limit: float = 4.0) -> tuple[Tensor, Tensor]:
    """Inputs uniform in [-limit, limit] and targets x³ + N(0, 3²), both [count, 1], float64."""
    generator = torch.Generator().manual_seed(seed)
    x = (2 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 1) * limit
    return x, x**3 + NOISE * torch.randn(count, 1, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Draws:
    """Outputs of drawn networks at G inputs.

    ``outputs`` [chains, samples, G]; ``split_r_hat`` [G] compares the chains (1 if they agree),
    ``effective`` [G] counts independent draws.
    """

    outputs: Tensor
    split_r_hat: Tensor
    effective: Tensor

    @property
    def mean(self) -> Tensor:
        """[G]."""
        return self.outputs.flatten(0, 1).mean(0)

    @property
    def std(self) -> Tensor:
        """[G]."""
        return self.outputs.flatten(0, 1).std(0)


def hamiltonian(
    model: nn.Sequential,
    x: Tensor,
    y: Tensor,
    new: Tensor,
    *,
    precision: float,
    noise: float = NOISE,
    samples: int = 1000,
    warmup: int = 500,
    chains: int = 2,
    seed: int = 0,
) -> Draws:
    """Draw networks of the model's shape from their posterior and apply them to ``new`` [G, 1].

    The prior is N(0, 1 / precision) for every weight and bias, the likelihood N(f(x), noise²). The
    chains start at random, not at the model's own weights.
    """
    numpyro = _numpyro()
    numpyro.enable_x64()
    import jax  # pyright: ignore[reportMissingImports]
    from numpyro import distributions  # pyright: ignore[reportMissingImports]
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin  # pyright: ignore[reportMissingImports]
    from numpyro.infer import MCMC, NUTS  # pyright: ignore[reportMissingImports]

    forward, sizes = _perceptron(model)
    inputs, targets, points = (jax.numpy.asarray(t.double().numpy()) for t in (x, y, new))

    def posterior() -> None:
        prior = distributions.Normal(0.0, precision**-0.5)
        weights = [
            numpyro.sample(f"w{i}", prior.expand(list(size)).to_event(len(size)))
            for i, size in enumerate(sizes)
        ]
        numpyro.sample("y", distributions.Normal(forward(weights, inputs), noise), obs=targets)

    sampler = MCMC(
        NUTS(posterior),
        num_warmup=warmup,
        num_samples=samples,
        num_chains=chains,
        chain_method="sequential",
        progress_bar=False,
    )
    sampler.run(jax.random.PRNGKey(seed))
    drawn = sampler.get_samples(group_by_chain=True)
    names = [f"w{i}" for i in range(len(sizes))]
    apply = jax.vmap(jax.vmap(lambda *weights: forward(weights, points)[:, 0]))
    outputs = apply(*(drawn[name] for name in names))
    found = (outputs, split_gelman_rubin(outputs), effective_sample_size(outputs))
    return Draws(*(torch.from_numpy(jax.device_get(value).copy()) for value in found))


def _perceptron(model: nn.Sequential) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """The model as a function of weights and inputs in jax, and the shapes of its weights."""
    import jax  # pyright: ignore[reportMissingImports]

    for layer in model:
        if type(layer) not in ACTIVATIONS and not isinstance(layer, nn.Linear):
            known = ["Linear", *(kind.__name__ for kind in ACTIVATIONS)]
            raise TypeError(f"{type(layer).__name__} is not among the layers {known}")

    def forward(weights: Any, x: Any) -> Any:
        left = iter(weights)
        for layer in model:
            if isinstance(layer, nn.Linear):
                x = x @ next(left).T + (next(left) if layer.bias is not None else 0)
            else:
                x = getattr(jax.nn, ACTIVATIONS[type(layer)])(x)
        return x

    return forward, [tuple(parameter.shape) for parameter in model.parameters()]


def _numpyro() -> Any:
    try:
        import numpyro  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SystemExit("Hamiltonian Monte Carlo needs numpyro: pip install numpyro") from error
    return numpyro
