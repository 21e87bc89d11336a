"""Any convex loss of a few outputs, by automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap

from lapkernels.likelihoods.likelihood import (
    LOSSES,
    Columns,
    Likelihood,
    check_all,
    check_output,
    check_target_tensor,
    check_vector,
)
from lapkernels.ops.base.precision import widened

LARGEST_OUTPUT = 1024


@dataclass(frozen=True, eq=False)
class MatrixColumns(Columns):
    """Column v of the factor [N, prod(out), V], held in memory."""

    factor: Tensor
    shape: torch.Size
    dtype: torch.dtype

    @property
    def count(self) -> int:
        """V, the columns of the matrix."""
        return self.factor.shape[2]

    def chunk(self, first: int, last: int) -> Tensor:
        """Columns [last - first, N, *out]."""
        self.check_range(first, last)
        part = self.factor[:, :, first:last].permute(2, 0, 1)
        return part.reshape(last - first, *self.shape).to(self.dtype)

    def combined(self, signs: Tensor) -> Tensor:
        """The factor times the signs, [K, N, *out]."""
        made = torch.einsum("nov,knv->kno", self.factor, signs.to(self.factor.dtype))
        return made.reshape(len(signs), *self.shape).to(self.dtype)


@dataclass(frozen=True, eq=False)
class LossFunction(Likelihood):
    """nll = loss(f, y), where ``loss`` returns the sum of one convex term a sample.

    The Hessian of every sample is formed, [N, prod(out), prod(out)], by differentiating the loss
    twice; its eigenvectors are the columns. So outputs have at most 1024 entries a sample.
    """

    loss: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        if not callable(self.loss):
            raise TypeError(f"loss is a {type(self.loss).__name__}: a callable is needed")

    @property
    def needs_target(self) -> bool:
        """True: the Hessian of an unknown loss may depend on the target."""
        return True

    def check_shapes(self, f: Tensor, y: Tensor | None = None) -> None:
        """Outputs are few; targets have as many samples."""
        check_output(f)
        if f.shape[1:].numel() > LARGEST_OUTPUT:
            raise ValueError(
                f"f has {f.shape[1:].numel()} outputs a sample, and LossFunction forms their whole "
                f"Hessian: at most {LARGEST_OUTPUT}. A likelihood with a closed form has no limit"
            )
        if y is None:
            raise ValueError("y is None, but the Hessian of a loss depends on the targets")
        check_target_tensor(f, y)
        if y.dim() == 0 or y.shape[0] != f.shape[0]:
            raise ValueError(f"y of shape {tuple(y.shape)} does not hold {f.shape[0]} samples")

    def check_values(self, f: Tensor, y: Tensor | None = None) -> None:
        """The loss is a sum over samples: repeating one of them adds its own loss once more."""
        if y is None or f.shape[0] == 0:
            return
        with torch.no_grad():
            few, targets = f[:4], y[:4]
            total, one = self.nll(few, targets), self.nll(few[:1], targets[:1])
            more = self.nll(torch.cat([few, few[:1]]), torch.cat([targets, targets[:1]]))
        tolerance = torch.finfo(total.dtype).eps ** 0.5 * max(abs(total), abs(one), abs(more))
        if not abs(more - total - one) <= tolerance:
            raise ValueError(
                "loss is not a sum over samples: one more sample of loss "
                f"{one.item():.6g} raised it from {total.item():.6g} to {more.item():.6g}. "
                'Losses of torch need reduction="sum"'
            )

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """loss(f, y)."""
        self.check_shapes(f, y)
        value = self.loss(widened(f), y)
        if not isinstance(value, Tensor) or value.dim() != 0:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"loss returned {found}: a scalar, the sum over samples, is needed")
        return value

    def score(self, f: Tensor, y: Tensor) -> Tensor:
        """d loss / d f, [N, *out]."""
        return grad(self.nll)(f, y)

    def sample(
        self, f: Tensor, generator: torch.Generator | None = None, y: Tensor | None = None
    ) -> Tensor:
        """Raise: a loss alone is no distribution of targets."""
        raise NotImplementedError(
            "loss defines no distribution that targets could be drawn from: use a likelihood such "
            "as Gaussian or Categorical, random signs of the columns, or the true targets"
        )

    def columns(self, f: Tensor, y: Tensor | None = None) -> Columns:
        """sqrt(eigenvalue) times eigenvector, V = prod(out). Raise if the loss is not convex."""
        values, vectors = torch.linalg.eigh(self._hessian(f, y))
        slack = torch.finfo(values.dtype).eps ** 0.5 * values.abs().amax() if len(values) else 0.0
        check_all(
            "eigenvalue of the loss's Hessian",
            values,
            values >= -slack,
            "a Gauss-Newton matrix needs a loss that is convex in the outputs",
        )
        return MatrixColumns(vectors * values.clamp_min(0).sqrt().unsqueeze(1), f.shape, f.dtype)

    def diagonal(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """diag(H_n), [N, *out]."""
        return self._hessian(f, y).diagonal(dim1=1, dim2=2).reshape(f.shape).to(f.dtype)

    def product(self, f: Tensor, v: Tensor, y: Tensor | None = None) -> Tensor:
        """H_n v_n, in the shape of v."""
        hessian = self._hessian(f, y)
        check_vector(f, v)
        flat = widened(v).reshape(*v.shape[: v.dim() - f.dim()], *hessian.shape[:2])
        return torch.einsum("npq,...nq->...np", hessian, flat).reshape(v.shape).to(f.dtype)

    def _hessian(self, f: Tensor, y: Tensor | None) -> Tensor:
        """H [N, prod(out), prod(out)]."""
        self.check_shapes(f, y)
        f = widened(f)
        size = f.shape[1:].numel()
        if f.shape[0] == 0:
            return f.new_zeros(0, size, size)

        def of_one(f_n: Tensor, y_n: Tensor) -> Tensor:
            return self.nll(f_n.unsqueeze(0), y_n.unsqueeze(0))

        hessian = vmap(jacrev(grad(of_one)))(f, y)
        return hessian.reshape(f.shape[0], size, size)


def _any_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> Likelihood:
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "sum") != "sum":
        summed: Any = copy(loss)
        summed.reduction = "sum"
        return LossFunction(summed)
    return LossFunction(loss)


LOSSES[None] = _any_loss
