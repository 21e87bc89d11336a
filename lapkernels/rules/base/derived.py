"""Uses of what a weight is made from.

A derived weight w = f(p) depends on parameters and not on samples. A use of w is one of p too, with

    G_p = Jᵀ G_w,    J = dw / dp,

for each sample and column. Where J is simple, sums over G_p come from sums over G_w, which kernels
compute without G in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from lapkernels.ops import Geometry
from lapkernels.rules.base.uses import RowsUse, Use, WeightUse

LINEAR = Geometry()


@dataclass(frozen=True)
class Moved(Use):
    """A weight with the entries of p in another order.

    ``pull`` takes [V, *w] to [V, *p], and ``push`` takes [*p] to [*w].
    """

    shape: tuple[int, ...]
    inner: Use
    pull: Callable[[Tensor], Tensor]
    push: Callable[[Tensor], Tensor]

    @property
    def count(self) -> int:
        return self.inner.count

    @property
    def channels(self) -> int | None:
        return self.inner.channels

    def jacobian(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        g = self.inner.jacobian(s, rows)
        return self.pull(g.flatten(0, 1)).unflatten(0, g.shape[:2])

    def squared(self, m: Tensor) -> Tensor:
        return self._pulled(self.inner.squared(m))

    def squared_sum(self, s: Tensor) -> Tensor:
        return self._pulled(self.inner.squared_sum(s))

    def squared_dot(self, s: Tensor, variance: Tensor) -> Tensor:
        return self.inner.squared_dot(s, self.push(variance))

    def gram(self, s: Tensor, variance: Tensor) -> Tensor:
        return self.inner.gram(s, self.push(variance))

    def channel_dots(self, s: Tensor, direction: Tensor | None = None) -> Tensor:
        return self.inner.channel_dots(s, None if direction is None else self.push(direction))

    def weighted_sum(self, s: Tensor, c: Tensor) -> Tensor:
        return self._pulled(self.inner.weighted_sum(s, c))

    def _pulled(self, value: Tensor) -> Tensor:
        return self.pull(value.unsqueeze(0))[0]


@dataclass(frozen=True)
class Multiplied(Use):
    """w = factor ∘ p + ..., entry by entry: G_p = factor ∘ G_w."""

    shape: tuple[int, ...]
    inner: Use
    factor: Callable[[], Tensor]

    @property
    def count(self) -> int:
        return self.inner.count

    @property
    def channels(self) -> int | None:
        return self.inner.channels

    def channel_dots(self, s: Tensor, direction: Tensor | None = None) -> Tensor:
        factor = self.factor().expand(self.shape)
        return self.inner.channel_dots(s, factor if direction is None else factor * direction)

    def weighted_sum(self, s: Tensor, c: Tensor) -> Tensor:
        return self.inner.weighted_sum(s, c) * self.factor()

    def jacobian(self, s: Tensor, rows: slice = slice(None)) -> Tensor:
        return self.inner.jacobian(s, rows) * self.factor()

    def squared(self, m: Tensor) -> Tensor:
        return self.inner.squared(m).mul_(self.factor().square())

    def squared_sum(self, s: Tensor) -> Tensor:
        return self.inner.squared_sum(s).mul_(self.factor().square())

    def squared_dot(self, s: Tensor, variance: Tensor) -> Tensor:
        return self.inner.squared_dot(s, variance * self.factor().square())

    def gram(self, s: Tensor, variance: Tensor) -> Tensor:
        return self.inner.gram(s, variance * self.factor().square())


@dataclass(frozen=True)
class MixedRows(WeightUse):
    """A layer whose columns are those of another one times a matrix, ``arrange(s) @ matrix()``.

    ``given`` arranges the columns of the other layer.
    """

    given: Callable[[Tensor], Tensor] = field(kw_only=True)
    matrix: Callable[[], Tensor] = field(kw_only=True)

    def squared(self, m: Tensor) -> Tensor:
        given, matrix = self.given, self.matrix
        return replace(self.plain, arrange=lambda s: given(s) @ matrix().square()).squared(m)

    @property
    def plain(self) -> WeightUse:
        """The layer with its own columns."""
        return WeightUse(self.shape, self.geometry, self.x, self.arrange, self.flipped)


def multiplied(use: Use, shape: tuple[int, ...], factor: Callable[[], Tensor]) -> Use:
    """The use of p in w = factor ∘ p; a number multiplies the input of a layer."""
    if factor().numel() > 1 or not isinstance(use, WeightUse):
        return Multiplied(shape, use, factor)
    if isinstance(use, RowsUse):
        rows = use.rows
        return RowsUse.of(use.shape, lambda: rows() * factor().reshape(()))
    x = use.x
    return replace(use, x=lambda: x() * factor().reshape(()))


def moved(
    use: Use,
    shape: tuple[int, ...],
    pull: Callable[[Tensor], Tensor],
    push: Callable[[Tensor], Tensor],
    *,
    transposed: bool = False,
) -> Use:
    """The use of p in a view w of it; ``transposed`` if w = pᵀ."""
    if transposed and type(use) is WeightUse and use.geometry.is_linear and len(use.shape) == 2:
        return replace(use, shape=shape, flipped=not use.flipped)
    return Moved(shape, use, pull, push)


def factors(
    use: Use, a: Callable[[], Tensor], b: Callable[[], Tensor]
) -> tuple[WeightUse, WeightUse] | None:
    """The uses of a and b in w = a b, a matrix of a layer: two layers, one after the other."""
    if not isinstance(use, WeightUse) or isinstance(use, MixedRows):
        return None
    if not use.geometry.is_linear or len(use.shape) != 2:
        return None
    # out = x w = (x a) b if the weight is stored as [I, O], else out = x wᵀ = (x bᵀ) aᵀ.
    x, given, flipped = use.x, use.arrange, use.flipped

    def first() -> Tensor:
        return a() if flipped else b().mT

    def second() -> Tensor:
        return b().mT if flipped else a()

    shapes = (tuple(a().shape), tuple(b().shape))
    below = MixedRows(
        shapes[0 if flipped else 1], LINEAR, x, lambda s: given(s) @ second(), flipped,
        given=given, matrix=second,
    )  # fmt: skip
    above = WeightUse(shapes[1 if flipped else 0], LINEAR, lambda: x() @ first(), given, flipped)
    return (below, above) if flipped else (above, below)
