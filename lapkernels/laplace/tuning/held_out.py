r"""Prior, noise and temperature from held-out data, in one pass over them.

Squared coordinates c² in a basis that the prior's precision does not rotate, with the curvature h
of each, give the predictive variance for every factor t of the precision,

.. math:: v(t) = \sum_k \frac{c_k^2}{h_k + t \lambda_k} .

Each batch is pulled back once, and v is kept at a few t a decade apart: between them log v is a
cubic spline in log t. Its error is at most 5/384 s⁴ times the fourth derivative, 1/8 of one
coordinate, at a distance s = log 10: 5 % of v. Everything else is a smooth problem in a few
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature import Refused
from lapkernels.curvature.data.batches import Output, batches_of
from lapkernels.curvature.quantities.predictive import predictive_variances
from lapkernels.curvature.recording.targets import check_outputs, with_targets
from lapkernels.laplace.posterior import Posterior
from lapkernels.laplace.predictive.forward import forward, positions_of
from lapkernels.laplace.predictive.links import probit
from lapkernels.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
)

# Factors of the prior's precision at which variances are kept, and their distance in logarithms.
NODES, SPACING = 8, math.log(10)
# Outputs of one sample whose variances are kept at most; of more, random positions.
OUTPUTS = 256
# Classes of which each has a backward pass, at most.
CLASSES = 4096


@dataclass(frozen=True)
class Curves:
    """Held-out outputs, with their variance as a function of the precision.

    ``mean`` is [M, C] at M positions: of C classes, a mean and a log-variance, or one output.
    ``logs`` [G, K, M, C] are logarithms of each group's share of the variance at ``nodes`` [K],
    logarithms of factors. ``noise`` [M] is the variance of a regression's noise at c = 1.
    """

    likelihood: Likelihood
    nodes: Tensor
    mean: Tensor
    logs: Tensor
    y: Tensor
    noise: Tensor

    @property
    def count(self) -> int:
        """M."""
        return len(self.mean)

    def variance(self, factors: Tensor, scale: Tensor) -> Tensor:
        """v [M, C] at ``factors`` [G] and c, both logarithms, differentiable in them."""
        weights = spline(self.nodes, factors - scale).to(self.logs.dtype)
        shares = torch.einsum("gk,gkmc->gmc", weights, self.logs)
        return (shares - scale).exp().sum(0)

    def nll(self, factors: Tensor, scale: Tensor, temperature: Tensor) -> Tensor:
        """-log p(y) of the linearised predictive, [M]; all arguments are logarithms."""
        return self._nll(self.variance(factors, scale), scale, temperature)

    def plain(self, scale: Tensor) -> Tensor:
        """-log p(y) of the network alone, [M]."""
        return self._nll(torch.zeros_like(self.mean), scale, scale.new_zeros(()))

    def _nll(self, v: Tensor, scale: Tensor, temperature: Tensor) -> Tensor:
        m, y = self.mean, self.y
        if isinstance(self.likelihood, Categorical | Bernoulli):
            t = temperature.exp().to(m.dtype)
            logits = probit(m / t, v / t.square())
            if isinstance(self.likelihood, Categorical):
                return nn.functional.cross_entropy(logits, y, reduction="none")
            entropy = nn.functional.binary_cross_entropy_with_logits
            return entropy(logits[:, 0], y, reduction="none")
        if isinstance(self.likelihood, HeteroscedasticGaussian):
            total = v[:, 0] + (m[:, 1] + v[:, 1] / 2).exp()
        else:
            total = v[:, 0] + self.noise * (-scale).exp()
        return 0.5 * ((y - m[:, 0]).square() / total + (2 * math.pi * total).log())


def curves_of(
    model: nn.Module,
    data: Any,
    posterior: Posterior,
    likelihood: Likelihood,
    output: Output,
    groups: Sequence[Sequence[str]],
    nodes: Tensor,
    generator: torch.Generator,
) -> Curves:
    """One pass over held-out ``data``, which keeps groups x nodes + 1 numbers for each output.

    Of a sample with more than ``OUTPUTS`` outputs, as many at random positions.
    """
    if not isinstance(likelihood, Gaussian | Categorical | Bernoulli | HeteroscedasticGaussian):
        raise NotImplementedError(
            f"the predictive density of {type(likelihood).__name__} has no closed form: choose the "
            "prior by tune(by='evidence') or set_prior"
        )
    families = posterior.families(nodes.exp())
    owner = [next(i for i, g in enumerate(groups) if b.names[0] in g) for b, _ in families]
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for batch in with_targets(model, batches_of(data)):
        if batch.target is None:
            raise ValueError("held-out data need labels: give batches (inputs, labels)")
        f = forward(model, batch, output)
        check_outputs(likelihood, f, batch)
        every = positions_of(f, likelihood)  # [T, C]
        if every.shape[1] > CLASSES:
            raise Refused(
                f"held-out data would take a backward pass for each of {every.shape[1]} classes: "
                "tune(by='cautious') takes none, set_prior any precision"
            )
        places = _places(len(f), len(every), every.shape[1], generator)
        outputs = every[places].flatten(1)
        shares = predictive_variances(model, batch.inputs, families, outputs=outputs, output=output)
        v = shares.new_zeros(len(groups), *shares.shape[1:])
        v.index_add_(0, torch.tensor(owner, device=v.device), shares)
        v = v.clamp_min(torch.finfo(v.dtype).tiny).unflatten(3, (-1, every.shape[1])).flatten(2, 3)
        mean = f.reshape(len(f), -1).gather(1, outputs).reshape(-1, every.shape[1])
        y, noise, kept = _targets(f, batch.target, likelihood, places)
        parts.append((mean[kept], v.log()[:, :, kept], y[kept], noise[kept]))
    columns = list(zip(*parts, strict=True))
    mean, logs, y, noise = (torch.cat(part, 2 if i == 1 else 0) for i, part in enumerate(columns))
    return Curves(likelihood, nodes, mean, logs, y, noise)


def _places(samples: int, targets: int, size: int, generator: torch.Generator) -> Tensor:
    """Indices [N, T'] of the targets of each sample that are kept."""
    most = max(1, OUTPUTS // size)
    if targets <= most:
        return torch.arange(targets, device=generator.device).expand(samples, -1)
    drawn = torch.rand(samples, targets, generator=generator, device=generator.device)
    return drawn.topk(most, 1).indices


def _targets(
    f: Tensor, y: Tensor, likelihood: Likelihood, places: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Targets [M] or [M, C], the noise's variance [M], and which targets are not ignored [M]."""
    rows = torch.arange(len(f), device=f.device).unsqueeze(1)
    noise = f.new_ones(places.numel())
    kept = noise.bool()
    if isinstance(likelihood, Categorical) and y.is_floating_point():
        y = y.movedim(likelihood.dim, -1).reshape(len(f), -1, f.shape[likelihood.dim])
        return y[rows, places].flatten(0, 1).to(f.dtype), noise, kept
    picked = y.reshape(len(f), -1)[rows, places].flatten()
    if isinstance(likelihood, Categorical):
        return picked.long(), noise, picked != likelihood.ignore_index
    if isinstance(likelihood, Gaussian):
        variance = torch.as_tensor(likelihood.variance, dtype=f.dtype, device=f.device)
        noise = variance.expand(f.shape).reshape(len(f), -1)[rows, places].flatten()
    return picked.to(f.dtype), noise, kept


def spline(nodes: Tensor, s: Tensor) -> Tensor:
    """Weights [G, K] of values at equidistant ``nodes`` in the natural cubic spline at ``s`` [G].

    Beyond the ends it goes on as a straight line.
    """
    step = nodes[1] - nodes[0]
    inside = s.clamp(nodes[0], nodes[-1])
    place = ((inside.detach() - nodes[0]) / step).long().clamp(0, len(nodes) - 2)
    b = ((inside - nodes[place]) / step).unsqueeze(1)
    a, unit = 1 - b, torch.eye(len(nodes), dtype=nodes.dtype, device=nodes.device)
    curved = _second_derivatives(len(nodes)).to(nodes)
    left, right, low, high = unit[place], unit[place + 1], curved[place], curved[place + 1]
    found = a * left + b * right + ((a**3 - a) * low + (b**3 - b) * high) / 6
    slope = right - left + ((1 - 3 * a**2) * low + (3 * b**2 - 1) * high) / 6
    return found + ((s - inside) / step).unsqueeze(1) * slope


@lru_cache(8)
def _second_derivatives(count: int) -> Tensor:
    """The map [K, K] from values at nodes of distance 1 to the spline's second derivatives."""
    unit = torch.eye(count, dtype=torch.float64, device="cpu")
    system, right = unit.clone(), torch.zeros_like(unit)
    for k in range(1, count - 1):
        system[k, k - 1 : k + 2] = unit.new_tensor([1, 4, 1])
        right[k, k - 1 : k + 2] = unit.new_tensor([6, -12, 6])
    return torch.linalg.solve(system, right)
