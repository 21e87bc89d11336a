"""Gaussian likelihood with known noise: regression."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lapkernels.likelihoods.independent import DiagonalColumns, IndependentOutputs
from lapkernels.likelihoods.likelihood import (
    FUNCTIONS,
    LOSSES,
    WORDS,
    Columns,
    check_all,
    check_finite,
)
from lapkernels.ops.base.precision import widened


@dataclass(frozen=True, eq=False)
class Gaussian(IndependentOutputs):
    """y ~ N(f, variance): nll = sum (f - y)² / (2 variance), H = I / variance.

    ``variance`` is a number, or a tensor that broadcasts to [*out]: [C] for outputs [N, C], and
    [C, 1, 1] for one noise a channel of images [N, C, H, W].
    """

    variance: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.variance, float) and 0 < self.variance < float("inf"):
            return
        # Not as_tensor of a tensor, which would move it to the default device.
        given = self.variance
        variance = given.detach() if isinstance(given, Tensor) else torch.as_tensor(given)
        if variance.is_complex() or variance.dtype == torch.bool:
            raise TypeError(f"variance has dtype {variance.dtype}: a real number is needed")
        good = variance.isfinite() & (variance > 0)
        check_all("variance", variance, good, "a positive finite variance is needed")

    def check_shapes(self, f: Tensor, y: Tensor | None = None) -> None:
        """Targets have the shape of the outputs; the variance fits [*out]."""
        super().check_shapes(f, y)
        shape = self.variance.shape if isinstance(self.variance, Tensor) else torch.Size()
        out = f.shape[1:]
        tail = out[len(out) - len(shape) :]
        if len(shape) > len(out) or any(a not in (1, b) for a, b in zip(shape, tail, strict=True)):
            raise ValueError(
                f"variance has shape {tuple(shape)}, which does not broadcast to the outputs "
                f"{tuple(out)} of one sample"
            )

    def check_values(self, f: Tensor, y: Tensor | None = None) -> None:
        """Targets are finite."""
        if y is not None:
            check_finite("y", y)

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Sum of (f - y)² / (2 variance)."""
        self.check_shapes(f, y)
        f = widened(f)
        return 0.5 * ((f - y.to(f.dtype)).square() / self._variance(f)).sum()

    def constant(self, f: Tensor, y: Tensor) -> Tensor:
        """Sum of log(2 pi variance) / 2."""
        variance = self._variance(f.double()).expand(f.shape)
        return 0.5 * (2 * math.pi * variance).log().sum()

    def score(self, f: Tensor, y: Tensor) -> Tensor:
        """(f - y) / variance."""
        self.check_shapes(f, y)
        wide = widened(f)
        return ((wide - y.to(wide.dtype)) / self._variance(wide)).to(f.dtype)

    def sample(
        self, f: Tensor, generator: torch.Generator | None = None, y: Tensor | None = None
    ) -> Tensor:
        """f + sqrt(variance) e with e standard normal."""
        self.check_shapes(f, y)
        wide = widened(f)
        noise = torch.randn(f.shape, generator=generator, dtype=wide.dtype, device=f.device)
        return (wide + self._variance(wide).sqrt() * noise).to(f.dtype)

    def columns(self, f: Tensor, y: Tensor | None = None) -> Columns:
        """One column an output, the same for every sample."""
        self.check_shapes(f, y)
        root = self.root(widened(f)).expand(1, *f.shape[1:])
        return DiagonalColumns(root, f.shape[0], f.dtype, constant=True)

    def curvature(self, f: Tensor) -> Tensor:
        """1 / variance."""
        if isinstance(self.variance, float):
            return f.new_full((), 1 / self.variance)
        return self._variance(f).reciprocal()

    def root(self, f: Tensor) -> Tensor:
        """1 / sqrt(variance)."""
        return self._variance(f).rsqrt()

    def _variance(self, f: Tensor) -> Tensor:
        return torch.as_tensor(self.variance, dtype=f.dtype, device=f.device)


WORDS.update(gaussian=Gaussian, regression=Gaussian)
LOSSES[nn.MSELoss] = lambda loss: Gaussian(variance=0.5)
FUNCTIONS.append((F.mse_loss, nn.MSELoss))
