"""The covariance diag(p) - p pᵀ of one draw from C classes, scaled by c: factor, diagonal, product.

With tails q_j = sum_{i >= j} p_i, q_0 = 1, the covariance is sum_{j < C-1} s_j s_jᵀ, where

    s_j[j] = r_j = sqrt(p_j q_{j+1} / q_j),   s_j[i] = -r_j p_i / q_{j+1}  for i > j,   else 0

(Tanabe and Sagae, 1992). It is computed from logarithms, and tails are sums of the probabilities
themselves, never 1 - sum: saturated ones lose no digits and divide no zeros. Tensors are [N, C, T]:
sample, class, position; c is [N, 1, T].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lapkernels.likelihoods._base import Columns, random_signs


@dataclass(frozen=True, eq=False)
class MultinomialColumns(Columns):
    """Column v = t (C - 1) + j is sqrt(c) s_j at position t and zero at the others.

    ``shape`` and ``dim`` are those of the outputs: [N, *out] with classes along ``dim``.
    """

    log_p: Tensor
    scale: Tensor | None
    shape: torch.Size
    dim: int
    dtype: torch.dtype

    @property
    def count(self) -> int:
        """V = (C - 1) T."""
        return (self.log_p.shape[1] - 1) * self.log_p.shape[2]

    @cached_property
    def log_tails(self) -> Tensor:
        """log q_j, [N, C, T]."""
        return self.log_p.flip(1).logcumsumexp(1).flip(1)

    def chunk(self, first: int, last: int) -> Tensor:
        """Columns [last - first, N, *out]."""
        self.check_range(first, last)
        _, classes, positions = self.log_p.shape
        index = torch.arange(first, last, device=self.log_p.device)
        t, j = index // (classes - 1), index % (classes - 1)
        column = self._entries(j, t).permute(2, 0, 1).unsqueeze(3)
        if positions > 1:
            there = t.unsqueeze(1) == torch.arange(positions, device=self.log_p.device)
            column = torch.where(there[:, None, None], column, 0.0)
        return self._unflattened(column)

    def local(self) -> Tensor | None:
        """Column (j, t) is sqrt(c) s_j of position t."""
        if self.dim != 1 or len(self.shape) < 3:
            return None
        _, classes, positions = self.log_p.shape
        t = torch.arange(positions, device=self.log_p.device).repeat(classes - 1)
        j = torch.arange(classes - 1, device=self.log_p.device).repeat_interleave(positions)
        entries = self._entries(j, t).unflatten(2, (classes - 1, positions))
        return self._unflattened(entries.permute(2, 0, 1, 3))

    def _entries(self, j: Tensor, t: Tensor) -> Tensor:
        """sqrt(c) s_j at position t for pairs of j and t, [N, C, pairs]."""
        classes = self.log_p.shape[1]
        tail, below = self.log_tails[:, j, t], self.log_tails[:, (j + 1).clamp_max(classes - 1), t]
        log_root = 0.5 * (self.log_p[:, j, t] + below - tail)
        i = torch.arange(classes, device=self.log_p.device).unsqueeze(1)
        # Where i < j the quotient p_i / q_{j+1} may overflow, which would make gradients NaN.
        log_ratio = (self.log_p[:, :, t] - below.unsqueeze(1)).masked_fill_(i <= j, 0.0)
        sign = torch.where(i == j, 1.0, torch.where(i > j, -1.0, 0.0)).to(self.log_p.dtype)
        # Columns fill the memory budget: no more than two such tensors at a time.
        column = log_ratio.add_(log_root.unsqueeze(1)).exp_()
        del log_ratio
        column = sign * column
        if self.scale is not None:
            column = column * self.scale.sqrt()[:, :, t]
        return column.to(self.dtype)

    def signs(self, generator: torch.Generator | None = None) -> Tensor:
        """sqrt(c) sum_k e_k sqrt(p_k) (1_k - p) with random signs e, [1, N, *out].

        These C columns are another factor: one column more, but without quotients.
        """
        p = self.log_p.exp()
        signed = (0.5 * self.log_p).exp() * random_signs(p, generator)
        made = signed * complement(p) - p * complement(signed)
        made = made if self.scale is None else made * self.scale.sqrt()
        return self._unflattened(made.to(self.dtype).unsqueeze(0))

    def _unflattened(self, columns: Tensor) -> Tensor:
        """[k, N, C, T] as [k, N, *out]."""
        others = [size for d, size in enumerate(self.shape) if d not in (0, self.dim)]
        shape = (columns.shape[0], self.shape[0], columns.shape[2], *others)
        return columns.reshape(shape).movedim(2, self.dim + 1)


def before(x: Tensor) -> Tensor:
    """sum_{j < i} x_j along the classes, with no subtraction."""
    shifted = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    return shifted.cumsum(1)


def after(x: Tensor) -> Tensor:
    """sum_{j > i} x_j along the classes, with no subtraction."""
    return before(x.flip(1)).flip(1)


def complement(x: Tensor) -> Tensor:
    """sum_{j != i} x_j along the classes: 1 - p to all digits, also where p is near 1."""
    return before(x) + after(x)


def covariance_product(p: Tensor, v: Tensor) -> Tensor:
    """(diag(p) - p pᵀ) v for v [..., N, C, T].

    v is taken relative to its value at the largest p: constants are in the null space, and the
    product's entry at a p near 1 then is a sum over the others instead of a difference.
    """
    top = p.argmax(1, keepdim=True).expand(*v.shape[:-2], 1, v.shape[-1])
    u = v - v.gather(-2, top)
    return p * (u - (p * u).sum(-2, keepdim=True))
