r"""The choice of prior, noise and temperature: a cautious one, and the best on held-out data.

The posterior's draws of the linearised model have a training loss that exceeds the network's by
:math:`\gamma / 2` in expectation, with :math:`\gamma = \mathrm{tr}(H (H + \Lambda)^{-1})`. The
cautious prior is the weakest for which that is ``WIDENING`` for each target: it hardly widens
predictions of data like the training data, and leaves the network's mean as it is. Held-out data
say how much further to go.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from lapkernels.laplace.fitting import Measured
from lapkernels.laplace.posterior import Posterior
from lapkernels.laplace.prior import Prior
from lapkernels.laplace.tuning.evidence import LARGEST, SMALLEST
from lapkernels.laplace.tuning.held_out import NODES, SPACING, Curves
from lapkernels.likelihoods import Bernoulli, Categorical

WITHOUT_DATA = (
    "tune() has no held-out data: it chooses a prior so strong that predictions hardly widen. "
    "Give data that the network has not seen, la.tune(held_out), to learn how sure it should be; a "
    "part of the training data will not do. tune(by='cautious') is this choice without the warning"
)

# The cautious posterior's expected training loss exceeds the network's by at most so many nats for
# each target, and the data determine at most this share of its parameters.
WIDENING, SHARE = 0.003, 0.1
# Freeing one more number has to gain so many nats: the 5 % level of a likelihood-ratio test.
GAIN = 2.0
# Standard deviations, before held-out data are seen, of the logarithms of the temperature, of c
# around that of the training data, and of each group's factor around the others'.
TEMPERATURE, NOISE, GROUPS = 0.25, 0.5, 1.0


@dataclass(frozen=True)
class Choice:
    """Logarithms: the factor of each group's precision [G], of c, and of the temperature.

    ``plain``, ``cautious`` and ``chosen`` are mean negative log-likelihoods of ``count`` held-out
    targets: of the network alone, of the cautious prior, and of this choice.
    """

    factors: Tensor
    scale: float
    temperature: float
    plain: float
    cautious: float
    chosen: float
    count: int


def cautious(
    posterior: Posterior, prior: Prior, scale: Tensor, measured: Measured, *, noise: bool
) -> tuple[Prior, Tensor]:
    """The cautious prior, and c of the noise that is left in the training data."""
    targets = measured.targets or measured.samples
    noise = noise and bool(measured.nll)
    if noise:
        assert measured.nll is not None
        scale = torch.full_like(scale, targets / (2 * measured.nll))
    posterior = posterior.rescaled(prior.precision, scale)
    factor = cautious_factor(posterior, targets)
    if noise:
        # The mean square of the residuals, over one target less for each number they determine.
        scale = scale * (1 - posterior.effective_count(math.exp(factor)) / targets)
    every = {key: scale.new_tensor(factor) for key in prior.values}
    return scaled(prior, every), scale.clamp(SMALLEST, LARGEST)


def cautious_factor(posterior: Posterior, targets: int) -> float:
    """Logarithm of the factor of the prior's precision that makes it cautious, γ up to 5 %."""
    goal = math.log(min(2 * WIDENING * targets, SHARE * posterior.uncertain_count()))

    def excess(u: float) -> float:
        return math.log(max(posterior.effective_count(math.exp(u)), 1e-300)) - goal

    low = high = (0.0, excess(0.0))
    if low[1] < -600:  # No curvature at all.
        return 0.0
    # The slope of log γ is between -1 and 0.
    while low[1] < 0 and low[0] > -60:
        low = (low[0] - 4, excess(low[0] - 4))
    while high[1] > 0 and high[0] < 60:
        high = (high[0] + 4, excess(high[0] + 4))
    for _ in range(30):
        if high[0] - low[0] < 1e-3 or abs(high[1]) < 0.05:
            break
        share = low[1] / (low[1] - high[1])
        middle = low[0] + (high[0] - low[0]) * min(max(share, 0.1), 0.9)
        value = excess(middle)
        low, high = ((middle, value), high) if value > 0 else (low, (middle, value))
    return high[0]


def scaled(prior: Prior, factors: Mapping[str, Tensor]) -> Prior:
    """The prior with each group's precision times a factor, given by its logarithm."""
    values = {key: value * factors[key].to(value).exp() for key, value in prior.values.items()}
    return prior.with_values({k: v.clamp(SMALLEST, LARGEST) for k, v in values.items()})


def separate_groups(prior: Prior, posterior: Posterior) -> dict[tuple[str, ...], list[str]]:
    """Parameters of each set of the prior's groups that the posterior's blocks do not couple."""
    owner = {name: key for key, names in prior.groups.items() for name in names}
    sets: list[set[str]] = [{key} for key in prior.groups]
    for block in posterior.blocks():
        touched = {owner[name] for name in block.names}
        joined = [one for one in sets if one & touched]
        sets = [one for one in sets if not one & touched] + [set().union(*joined)]
    order = list(prior.groups)
    keys = sorted((sorted(one, key=order.index) for one in sets), key=lambda k: order.index(k[0]))
    return {tuple(one): [name for key in one for name in prior.groups[key]] for one in keys}


def nodes_below(like: Tensor) -> Tensor:
    """Logarithms of the factors at which variances are kept, from above the cautious one down."""
    return like.new_tensor([SPACING * (k + 1.5 - NODES) for k in range(NODES)])


def warn_of(found: Choice, curves: Curves, measured: Measured, *, gaussian: bool) -> None:
    """Say if the data do not look held out, or if the choice is at the edge of its range."""
    if measured.nll and measured.targets == found.count and not gaussian:
        if math.isclose(measured.nll / found.count, found.plain, rel_tol=1e-4):
            warnings.warn(
                "these are the training data: the network has seen them and predicts them better "
                "than new ones. tune(held_out) needs data that it was not trained on",
                stacklevel=5,
            )
    if bool((found.factors < curves.nodes[0] + 0.1).any()):
        warnings.warn(
            "held-out data ask for a prior as weak as can be: the network may be far from an "
            "optimum, or overconfident in a way that this structure does not see",
            stacklevel=5,
        )


@dataclass
class Search:
    """Minimises the held-out loss over the numbers that are free, near those of the training data.

    A point has the common factor u, c, the temperature, and the deviation of each group from u.
    """

    curves: Curves
    groups: int

    def parts(self, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Factors [G], c and temperature, all logarithms."""
        nodes = self.curves.nodes
        factors = point[0] + (point[3:] if self.groups > 1 else point.new_zeros(1))
        return factors.clamp(nodes[0], nodes[-1]), point[1], point[2].clamp(-3, 3)

    def loss(self, point: Tensor) -> Tensor:
        """Summed over the data, with the penalties."""
        penalty = (point[1] / NOISE) ** 2 + (point[2] / TEMPERATURE) ** 2
        penalty = penalty + (point[3:] / GROUPS).square().sum()
        return self.curves.nll(*self.parts(point)).double().sum() + penalty / 2

    def minimum(self, start: Tensor, free: Sequence[int]) -> tuple[float, Tensor]:
        """The minimum over some numbers of the point, by L-BFGS from the best of several u."""
        starts = [start]
        if 0 in free:
            for u in self.curves.nodes:
                starts.append(start.clone())
                starts[-1][0] = u
        with torch.no_grad():
            start = min(starts, key=lambda point: float(self.loss(point)))
        index = torch.tensor(list(free), device=start.device)
        values = start[index].clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [values], max_iter=50, tolerance_grad=1e-4, line_search_fn="strong_wolfe"
        )

        def evaluate() -> Tensor:
            optimizer.zero_grad()
            with torch.enable_grad():
                value = self.loss(start.index_put((index,), values))
                value.backward()
            return value.detach()

        optimizer.step(evaluate)  # pyright: ignore[reportArgumentType]
        point = start.index_put((index,), values.detach())
        return float(self.loss(point)), point


@torch.no_grad()
def choose(curves: Curves, groups: int, *, noise: bool) -> Choice:
    """The cautious point, or one with more numbers free if held-out data gain enough by it.

    The noise of a regression is always free; u, a temperature of classes and each group's factor
    have to gain ``GAIN`` nats each.
    """
    search = Search(curves, groups)
    start = curves.nodes.new_zeros(3 + (groups if groups > 1 else 0))
    base = [1] if noise else []
    optional = [0, *([2] if isinstance(curves.likelihood, Categorical | Bernoulli) else [])]
    first = search.minimum(start, base) if base else (float(search.loss(start)), start)
    best, point = first
    for count in range(1, len(optional) + 1):
        for extra in combinations(optional, count):
            value, found = search.minimum(first[1], [*base, *extra])
            if value + GAIN * count < best:
                best, point = value + GAIN * count, found
    if groups > 1:
        free = [*base, *optional, *range(3, 3 + groups)]
        value, found = search.minimum(point, free)
        if value + GAIN * (len(optional) + groups - 1) < best:
            point = found
    factors, scale, temperature = search.parts(point)

    def mean(at: Tensor) -> float:
        return float(curves.nll(*search.parts(at)).double().mean())

    plain = float(curves.plain(scale).double().mean())
    return Choice(
        factors, float(scale), float(temperature), plain, mean(first[1]), mean(point), curves.count
    )
