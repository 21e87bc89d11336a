"""Uses of a weight whose output channels are normalised, and of the gain that scales them.

With u = (p - mean) r in each channel, r = 1 / sqrt(var + eps), and w = gain u, of K entries each,

    G_p = gain r (G - m - u c),    m = mean(G),    c = mean(G u),    G_gain = K c,

without m where the mean is not taken off (weight norm). So sums of squares are

    sum G_p² = (gain r)² (sum G² - 2 sum m G - 2 u sum c G + sum (m + u c)²),

where m and c are dot products at the layer's outputs, and sum m G a weight gradient of columns that
are scaled by m and summed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lapkernels.rules.base.derived import Moved, Multiplied
from lapkernels.rules.base.uses import Use, WeightUse

# In smaller channels G_p may be a small difference of large sums; there G is made.
SMALLEST = 16


@dataclass(frozen=True)
class Normalised(Use):
    """The use of p. ``u`` is of its shape, ``scale`` [C] is gain r, ``aligned`` their layout.

    ``pull`` takes G [V, *shape] to G_p, ``pull_diagonal`` does it for a diagonal.
    """

    shape: tuple[int, ...]
    inner: Use
    aligned: tuple[int, ...]
    centred: bool
    u: Callable[[], Tensor]
    scale: Callable[[], Tensor]
    pull: Callable[[Tensor], Tensor]
    pull_diagonal: Callable[[Tensor], Tensor]

    @property
    def count(self) -> int:
        return self.inner.count

    @property
    def size(self) -> int:
        """K, the entries of a channel."""
        return torch.Size(self.shape).numel() // torch.Size(self.aligned).numel()

    def jacobian(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        g = self.inner.jacobian(s, rows)
        return self.pull(g.flatten(0, 1)).unflatten(0, g.shape[:2])

    def squared(self, m: Tensor) -> Tensor:
        return self.pull_diagonal(self.inner.squared(m))

    def squared_sum(self, s: Tensor) -> Tensor:
        u, total = self.u(), self.inner.squared_sum(s)
        c = self.inner.channel_dots(s, u) / self.size
        squares = u * u * self._at_channels(c.square())
        cross = u * self.inner.weighted_sum(s, c)
        if self.centred:
            m = self.inner.channel_dots(s) / self.size
            squares += 2 * u * self._at_channels(m * c) + self._at_channels(m.square())
            cross += self.inner.weighted_sum(s, m)
        total += squares - 2 * cross
        return total.clamp_(min=0).mul_(self.scale().reshape(self.aligned).square())

    def squared_dot(self, s: Tensor, variance: Tensor) -> Tensor:
        u, dots = self.u(), self.inner.channel_dots
        scaled = variance * self.scale().reshape(self.aligned).square()
        c = dots(s, u) / self.size
        moments = [self._by_channel(scaled * u**power) for power in range(3)]
        total = self.inner.squared_dot(s, scaled)
        more = c * (c * moments[2] - 2 * dots(s, scaled * u))
        if self.centred:
            m = dots(s) / self.size
            more += m * (m * moments[0] + 2 * c * moments[1] - 2 * dots(s, scaled))
        return (total + more.sum(2).T).clamp_(min=0)

    def _at_channels(self, value: Tensor) -> Tensor:
        """The sum of [V, N, C] over columns and samples, aligned with the weight."""
        return value.sum((0, 1)).reshape(self.aligned)

    def _by_channel(self, value: Tensor) -> Tensor:
        """The sum of each channel, [C]."""
        return value.sum_to_size(self.aligned).flatten()


@dataclass(frozen=True)
class Gain(Use):
    """The use of the gain [C]: the dot products of each channel of G with u."""

    shape: tuple[int, ...]
    inner: Use
    u: Callable[[], Tensor]

    @property
    def count(self) -> int:
        return self.inner.count

    def jacobian(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        dots = self.inner.channel_dots(s, self.u())[:, rows]
        return dots.reshape(*dots.shape[:2], *self.shape)

    def squared(self, m: Tensor) -> Tensor:
        squares = self.inner.squared(m) * self.u().square()
        return squares.flatten(1).sum(1).reshape(self.shape)

    def squared_sum(self, s: Tensor) -> Tensor:
        return self.jacobian(s).square().sum((0, 1))


def has_channels(use: Use, aligned: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether the channels of a weight, ``aligned`` with its shape, are those of its layer."""
    count = torch.Size(aligned).numel()
    channel = torch.arange(count, dtype=torch.int32).reshape(aligned).expand(shape)
    if torch.Size(shape).numel() < SMALLEST * count or use.channels != count:
        return False
    while isinstance(use, Moved | Multiplied):
        channel = use.push(channel) if isinstance(use, Moved) else channel
        use = use.inner
    own = torch.arange(count, dtype=torch.int32).unsqueeze(1)
    return isinstance(use, WeightUse) and torch.equal(
        channel.flatten(1), own.expand_as(channel.flatten(1))
    )
