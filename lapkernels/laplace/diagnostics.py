"""Diagnostics of a Laplace approximation from its dense curvature matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def diagonalisation_error(precision: Tensor) -> Tensor:
    """|A⁻¹ - diag(1 / A_pp)| [P, P]: the error of a diagonal posterior's covariance."""
    precision = precision.double()
    return (torch.linalg.inv(precision) - torch.diag(1 / precision.diagonal())).abs()


def effective_parameters(eigenvalues: Tensor, prior: float) -> Tensor:
    """λ / (λ + α) of each eigenvalue; their sum is γ, the effective number of parameters."""
    values = eigenvalues.double().clamp_min(0)
    return values / (values + prior)


@dataclass(frozen=True)
class LCurve:
    """Tikhonov's L-curve: ``sums`` of |(H + λ 1)⁻¹| over ``lambdas``, with its corner."""

    lambdas: Tensor
    sums: Tensor
    corner: int

    @property
    def best(self) -> float:
        """λ at the corner."""
        return float(self.lambdas[self.corner])


def l_curve(matrix: Tensor, lambdas: Tensor) -> LCurve:
    """The curve, and its corner: the point of largest curvature in logarithms of both axes."""
    if len(lambdas) < 5 or not bool((lambdas > 0).all() and (lambdas.diff() > 0).all()):
        raise ValueError("lambdas needs at least five positive numbers in ascending order")
    h = matrix.double()
    eye = torch.eye(len(h), dtype=h.dtype, device=h.device)
    sums = torch.stack([torch.linalg.inv(h + float(t) * eye).abs().sum() for t in lambdas])
    x, y = lambdas.double().log(), sums.cpu().log()
    (dx,), (dy,) = torch.gradient(x), torch.gradient(y)
    (ddx,), (ddy,) = torch.gradient(dx), torch.gradient(dy)
    bend = (dx * ddy - dy * ddx) / (dx.square() + dy.square()) ** 1.5
    return LCurve(lambdas, sums, int(bend[1:-1].argmax()) + 1)
