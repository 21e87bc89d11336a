r"""The optimum of the linearised model.

The model :math:`h(\theta) = f(\tilde\theta) + J (\theta - \tilde\theta)` has a convex loss

.. math:: L(\theta) = - c \log p(y | h(\theta)) + \tfrac12 \theta^T \Lambda \theta

with one minimum :math:`\theta_\star`. Early stopping, noisy gradients and norms keep
:math:`\tilde\theta` away from it, and the evidence at :math:`\tilde\theta` then overestimates the
uncertainty (Antorán et al., Adapting the linearised Laplace model evidence, 2022). Found from
products with J and Jᵀ alone, with the posterior's covariance as the preconditioner: by Newton
steps, each solved by conjugate gradients, or by stochastic gradients, one batch after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lapkernels.curvature import Refused
from lapkernels.curvature.by_autograd.products import Graph, flat, graph_of
from lapkernels.curvature.data.batches import batches_of, check_choice
from lapkernels.curvature.data.contents import Contents, check_mode
from lapkernels.curvature.recording.targets import with_targets
from lapkernels.curvature.results.summary import by_name
from lapkernels.laplace.posterior import Posterior
from lapkernels.laplace.structures import Subject

Solver = Literal["conjugate_gradients", "sgd"]
# The line search ends at this share of a Newton step.
SMALLEST_STEP = 1e-8


@dataclass(frozen=True)
class Optimum:
    """θ★ by name, and the linearised model's negative log-likelihood there, at c = 1.

    ``gradient`` is the norm of the loss's gradient at θ★ over that at θ̃.
    """

    theta: dict[str, Tensor]
    nll: float
    gradient: float


@dataclass
class LinearisedLoss:
    """L as a function of the step d = θ - θ̃, flat [P], by sweeps over the data."""

    subject: Subject
    data: Any
    posterior: Posterior

    def __post_init__(self) -> None:
        check_mode(Contents.of(self.subject.model))
        if isinstance(self.data, Iterator):
            raise ValueError("data is an iterator, but it is read many times: give a list")
        parameters = self.subject.parameters
        self.start = torch.cat([p.detach().flatten() for p in parameters.values()])
        prior = [
            self.posterior.precision[name].expand(p.shape).to(p).flatten()
            for name, p in parameters.items()
        ]
        self.prior = torch.cat(prior)
        self.scale = float(self.posterior.scale)

    def value_and_gradient(self, d: Tensor) -> tuple[float, Tensor, float]:
        """L, its gradient [P], and the negative log-likelihood alone."""
        theta = self.start + d
        gradient, nll = self.prior * theta, 0.0
        for graph, y in self._graphs():
            with torch.no_grad():
                jd = graph.product(graph.shaped(d.unsqueeze(0)), 1)[0]
                h = graph.f.detach() + jd
                nll += float(self.subject.likelihood.nll(h.double(), y))
                score = self.subject.likelihood.score(h, y)
            gradient = gradient + self.scale * flat(graph.transposed(score.unsqueeze(0)))[0]
        quadratic = float((self.prior * theta.square()).double().sum())
        return self.scale * nll + 0.5 * quadratic, gradient, nll

    def stochastic_sweep(self, d: Tensor, gradient: Tensor, rate: float) -> Tensor:
        """A variance-reduced step for each batch b, with the full ``gradient`` at d.

        The direction is B (g_b(d') - g_b(d)) + Λ (d' - d) + g(d), whose mean over the B batches is
        the gradient at d'.
        """
        count = sum(1 for _ in batches_of(self.data))
        now = d
        for graph, y in self._graphs():
            with torch.no_grad():
                both = graph.product(graph.shaped(torch.stack([now, d])), 2)
                first, second = (
                    self.subject.likelihood.score(graph.f.detach() + part, y) for part in both
                )
            change = self.scale * flat(graph.transposed((first - second).unsqueeze(0)))[0]
            direction = count * change + self.prior * (now - d) + gradient
            now = now - rate / count * self.precondition(direction)
        return now

    def hessian_product(self, d: Tensor) -> Callable[[Tensor], Tensor]:
        """The function v -> (c Jᵀ W(h) J + Λ) v."""

        def product(v: Tensor) -> Tensor:
            total = self.prior * v
            for graph, y in self._graphs():
                with torch.no_grad():
                    both = graph.product(graph.shaped(torch.stack([d, v])), 2)
                    s = self.subject.likelihood.product(graph.f.detach() + both[0], both[1], y)
                total = total + self.scale * flat(graph.transposed(s.unsqueeze(0)))[0]
            return total

        return product

    def precondition(self, v: Tensor) -> Tensor:
        """The posterior's covariance times v."""
        pieces = by_name(v, {name: p.shape for name, p in self.subject.parameters.items()})
        return torch.cat([value.flatten() for value in self.posterior.solve(pieces).values()])

    def _graphs(self) -> Iterator[tuple[Graph, Any]]:
        chosen = dict(self.subject.parameters)
        for batch in with_targets(self.subject.model, batches_of(self.data)):
            if batch.target is None:
                raise ValueError("the linearised optimum needs labels: give (inputs, labels)")
            with graph_of(self.subject.model, batch, chosen, self.subject.output) as graph:
                yield graph, batch.target


def find_optimum(
    subject: Subject,
    data: Any,
    posterior: Posterior,
    *,
    by: Solver,
    tolerance: float,
    steps: int,
    start: dict[str, Tensor] | None = None,
    nats: float = 0.0,
) -> Optimum:
    """θ★ where the gradient g is ``tolerance`` times as large as at θ̃, or an error.

    It also ends where gᵀ Σ g / 2, which estimates the loss that is left, is at most ``nats``.
    """
    check_choice("by", by, Solver)
    if any(posterior.uncertain(name) is not None for name in subject.parameters):
        raise ValueError("a subnetwork's posterior has no linearised optimum: use another one")
    loss = LinearisedLoss(subject, data, posterior)
    d = torch.zeros_like(loss.start)
    value, gradient, nll = loss.value_and_gradient(d)
    first = float(gradient.norm())
    if start is not None:
        d = torch.cat([value.flatten() for value in start.values()]) - loss.start
        value, gradient, nll = loss.value_and_gradient(d)
    search = _newton if by == "conjugate_gradients" else _stochastic

    def done(g: Tensor) -> bool:
        small = float(g.norm()) <= tolerance * first
        return small or (nats > 0 and float(g @ loss.precondition(g)) <= 2 * nats)

    d, gradient, nll = search(loss, d, (value, gradient, nll), tolerance * first, steps, done)
    left = float(gradient.norm()) / first
    if not done(gradient) and left > 100 * torch.finfo(d.dtype).eps:
        raise Refused(
            f"the linearised optimum was not found: the gradient is {left:.1e} of its first after "
            f"steps={steps}, more than tolerance={tolerance:.1e}; raise one of them"
        )
    shapes = {name: p.shape for name, p in subject.parameters.items()}
    return Optimum(by_name(loss.start + d, shapes), nll, left)


Evaluated = tuple[float, Tensor, float]
Done = Callable[[Tensor], bool]


def _newton(
    loss: LinearisedLoss, d: Tensor, at: Evaluated, target: float, steps: int, done: Done
) -> tuple[Tensor, Tensor, float]:
    """Newton steps until the gradient is small; d, and gradient and nll there."""
    first = float(at[1].norm())
    for _ in range(steps):
        value, gradient, _ = at
        left = float(gradient.norm())
        if done(gradient):
            break
        # Solving further than the next linearisation of the loss changes is wasted.
        accuracy = max(min(0.1, left / first), 0.1 * target / left)
        step = conjugate_gradients(
            loss.hessian_product(d), -gradient, loss.precondition, accuracy, len(d)
        )
        size, slope = 1.0, float(gradient @ step)
        found = loss.value_and_gradient(d + step)
        while found[0] > value + 1e-4 * size * slope and size > SMALLEST_STEP:
            size /= 2
            found = loss.value_and_gradient(d + size * step)
        if not found[0] <= value + 1e-12 * abs(value):
            break
        d, at = d + size * step, found
    return d, at[1], at[2]


def _stochastic(
    loss: LinearisedLoss, d: Tensor, at: Evaluated, target: float, steps: int, done: Done
) -> tuple[Tensor, Tensor, float]:
    """Sweeps of stochastic gradients; one that does not lower the loss is redone at half the rate.

    Variance-reduced, so that the rate need not fall to zero (Johnson and Zhang, Accelerating
    stochastic gradient descent using predictive variance reduction, 2013).
    """
    rate = 1.0
    for _ in range(steps):
        value, gradient, _ = at
        if done(gradient) or rate < SMALLEST_STEP:
            break
        tried = loss.stochastic_sweep(d, gradient, rate)
        found = loss.value_and_gradient(tried)
        if found[0] <= value + 1e-12 * abs(value):
            d, at = tried, found
        else:
            rate /= 2
    return d, at[1], at[2]


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    right: Tensor,
    precondition: Callable[[Tensor], Tensor],
    accuracy: float,
    steps: int,
) -> Tensor:
    """x with ‖A x - right‖ ≤ accuracy ‖right‖, A symmetric positive definite."""
    x, residual = torch.zeros_like(right), right.clone()
    z = precondition(residual)
    direction, inner = z, residual @ z
    target = accuracy * right.norm()
    for _ in range(steps):
        image = product(direction)
        length = inner / (direction @ image)
        x, residual = x + length * direction, residual - length * image
        if residual.norm() <= target:
            break
        z = precondition(residual)
        inner, before = residual @ z, inner
        direction = z + (inner / before) * direction
    return x
