"""Likelihoods whose outputs are independent: the Hessian is diagonal, V = prod(out)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from lapkernels.likelihoods.likelihood import (
    Columns,
    Likelihood,
    LocalColumns,
    check_output,
    check_target,
    check_vector,
)
from lapkernels.ops.base.precision import widened


@dataclass(frozen=True, eq=False)
class DiagonalColumns(Columns):
    """Column v is root[v] at output v and zero elsewhere, H = diag(root²).

    ``root`` is [N, *out], with N = 1 where the columns are ``constant`` over the samples.
    """

    root: Tensor
    samples: int
    dtype: torch.dtype
    constant: bool = False

    @property
    def count(self) -> int:
        """V = prod(out)."""
        return self.root.shape[1:].numel()

    @property
    def shared(self) -> bool:
        """Whether the Hessian is constant."""
        return self.constant

    def chunk(self, first: int, last: int) -> Tensor:
        """Columns [last - first, N, *out]."""
        self.check_range(first, last)
        rows = torch.arange(first, last, device=self.root.device)
        own = rows.unsqueeze(1) == torch.arange(self.count, device=self.root.device)
        root = self.root.to(self.dtype).reshape(self.root.shape[0], self.count)
        made = torch.where(own.unsqueeze(1), root, 0.0)
        made = made.reshape(last - first, *self.root.shape)
        return made.expand(last - first, self.samples, *self.root.shape[1:])

    def local(self) -> LocalColumns | None:
        """A column at each entry."""
        root = self.root.to(self.dtype).expand(1, self.samples, *self.root.shape[1:])
        return LocalColumns(root)

    def combined(self, signs: Tensor) -> Tensor:
        """The root with these signs, [K, N, *out]."""
        root = self.root.expand(self.samples, *self.root.shape[1:])
        return (root * signs.view(len(signs), *root.shape).to(root.dtype)).to(self.dtype)


class IndependentOutputs(Likelihood):
    """Base of the likelihoods with a diagonal Hessian; ``f`` comes to them in float32 or 64."""

    @property
    def independent(self) -> bool:
        """True: H is diagonal."""
        return True

    @abstractmethod
    def curvature(self, f: Tensor) -> Tensor:
        """diag(H), broadcastable to [N, *out]."""

    @abstractmethod
    def root(self, f: Tensor) -> Tensor:
        """The square root of ``curvature``, in a form that underflows no earlier."""

    def check_shapes(self, f: Tensor, y: Tensor | None = None) -> None:
        """Targets have the shape of the outputs."""
        check_output(f)
        check_target(f, y, f.shape, "targets have the shape of the outputs,")

    def columns(self, f: Tensor, y: Tensor | None = None) -> Columns:
        """One column an output."""
        self.check_shapes(f, y)
        return DiagonalColumns(self.root(widened(f)), f.shape[0], f.dtype)

    def diagonal(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """diag(H_n), [N, *out]."""
        self.check_shapes(f, y)
        return self.curvature(widened(f)).to(f.dtype).expand(f.shape)

    def product(self, f: Tensor, v: Tensor, y: Tensor | None = None) -> Tensor:
        """diag(H_n) v_n, in the shape of v."""
        self.check_shapes(f, y)
        check_vector(f, v)
        return (self.curvature(widened(f)) * v).to(f.dtype)
