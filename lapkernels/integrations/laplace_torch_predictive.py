r"""laplace-torch's linearised predictions with no Jacobian in memory.

laplace-torch asks its backend for the Jacobian [N, C, P] of a batch and contracts it with the
posterior covariance. Here the columns of :math:`J` are back-propagated to each layer and contracted
there.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any, TypeVar

from laplace import DiagLaplace, KronLaplace, ParametricLaplace
from torch import Tensor, nn

from lapkernels.curvature import (
    CovarianceBlock,
    Eigenbasis,
    Factors,
    IndependentEntries,
    KroneckerEigenbasis,
    predictive_covariance,
)
from lapkernels.curvature.backward.parameter_uses import matrix_entries
from lapkernels.curvature.recording.graph import Share
from lapkernels.integrations.laplace_torch import Inputs, KeptOutputs, LaplaceTorchBackend
from lapkernels.rules import WeightUse

Posterior = TypeVar("Posterior", bound=ParametricLaplace)


def without_jacobians(la: Posterior) -> Posterior:
    """A copy of a posterior whose linearised predictions hold no Jacobian.

    ``la`` has a diagonal or Kronecker structure, of all parameters, the last layer or a subnetwork,
    and one of our backends. The copy shares its tensors; ``la(x)`` with every link,
    ``functional_samples``, ``predictive_samples`` and tuning by grid search give the same numbers.
    Joint covariances between samples (``joint=True``) and ``enable_backprop=True`` still go through
    the Jacobian.
    """
    if not isinstance(la, DiagLaplace | KronLaplace):
        raise TypeError(
            f"la is a {type(la).__name__}: a diagonal or Kronecker posterior is needed; one over "
            "all pairs of parameters is larger than the Jacobian"
        )
    if not isinstance(la.backend, LaplaceTorchBackend):
        raise TypeError(
            f"la has the backend {type(la.backend).__name__}: LaplaceTorchGGN or LaplaceTorchEF is "
            "needed"
        )
    made: Any = copy(la)
    # All of laplace-torch's predictions come out of this method.
    made._glm_predictive_distribution = partial(_predictive, made)
    return made


def _predictive(
    la: Any, x: Inputs, joint: bool = False, diagonal_output: bool = False
) -> tuple[Tensor, Tensor]:
    """Mean [N, C] and covariance [N, C, C] of the outputs, or variances [N, C]."""
    if joint or la.enable_backprop:
        return type(la)._glm_predictive_distribution(la, x, joint, diagonal_output)
    backend: LaplaceTorchBackend = la.backend
    blocks = _diagonal(la, backend) if isinstance(la, DiagLaplace) else _kronecker(la, backend)
    kept = KeptOutputs()
    covariance = predictive_covariance(la.model, [(x,)], blocks, output=kept)
    if diagonal_output:
        covariance = covariance.diagonal(dim1=1, dim2=2)
    return kept.of(len(covariance)), covariance


def _diagonal(la: DiagLaplace, backend: LaplaceTorchBackend) -> list[CovarianceBlock]:
    variance = la.posterior_variance.detach()
    if backend.subnetwork_indices is not None:
        whole = variance.new_zeros(sum(p.numel() for p in backend.params))
        variance = whole.index_copy_(0, backend.subnetwork_indices, variance)
    parts = variance.split([p.numel() for p in backend.params])
    return [
        IndependentEntries(name, part.reshape(p.shape))
        for (name, p), part in zip(_named(backend), parts, strict=True)
    ]


def _kronecker(la: KronLaplace, backend: LaplaceTorchBackend) -> list[CovarianceBlock]:
    precision: Any = la.posterior_precision
    found: list[CovarianceBlock] = []
    for (name, p), vectors, values, delta in zip(
        _named(backend),
        precision.eigenvectors,
        precision.eigenvalues,
        precision.deltas.detach(),
        strict=True,
    ):
        output, inputs = vectors[0].unsqueeze(0), None
        total = values[0].unsqueeze(1)
        if len(vectors) == 1:
            total = total + delta
        else:
            inputs = vectors[1].unsqueeze(0)
            if precision.damping:
                total = (total + delta.sqrt()) * (values[1] + delta.sqrt())
            else:
                total = total * values[1] + delta
        # Of the factors only the layout of the parameter is needed, a matrix [R, C].
        layout = Factors(tuple(p.shape), 1, output, inputs)
        basis = Eigenbasis(layout, output, inputs, total.reciprocal().unsqueeze(0))
        found.append(_MatrixEigenbasis(name, basis))
    return found


class _MatrixEigenbasis(KroneckerEigenbasis):
    """Kronecker factors of a parameter as a matrix of its first dimension and all others."""

    def of_share(
        self, share: Share, s: Tensor, joint: bool, weights: Tensor | None = None
    ) -> Tensor | None:
        use, like = share.use, self.basis.values.reshape(self.basis.factors.shape)
        if not isinstance(use, WeightUse) or use.geometry.groups > 1:
            return None
        # Elsewhere a layer's matrix has another layout, so Jacobians are rotated.
        in_order = matrix_entries(share, like) is None
        return super().of_share(share, s, joint, weights) if in_order else None


def _named(backend: LaplaceTorchBackend) -> list[tuple[str, nn.Parameter]]:
    return list(zip(backend.names_of(backend.params), backend.params, strict=True))
