r"""Backends for laplace-torch: the same posteriors, without the Jacobian.

.. code-block:: python

    from laplace import Laplace
    from lapkernels.integrations import LaplaceTorchGGN

    la = Laplace(model, "classification", hessian_structure="diag", backend=LaplaceTorchGGN)

Scales are laplace-torch's: the curvature of ``factor * lossfunc`` summed over the batch, with the
factor 1/2 for ``MSELoss`` and 1 for ``CrossEntropyLoss``. The empirical Fisher multiplies the outer
products of the unscaled loss's gradients by the factor once. Parameters follow each other as in
``parameters_to_vector``.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from laplace.curvature import CurvatureInterface, EFInterface, GGNInterface
from laplace.utils import Kron
from torch import Tensor, nn

from lapkernels.curvature import diag, full, jacobian, kron, sample_gradients
from lapkernels.integrations.laplace_torch_kron import kron_factors

Inputs = Tensor | MutableMapping[str, Any]


class LaplaceTorchBackend(CurvatureInterface):
    """Base class of :class:`LaplaceTorchGGN` and :class:`LaplaceTorchEF`.

    Inputs ``x`` are a tensor or a mapping, which the model gets as its only argument. ``N`` is the
    size of the whole data set, used by ``kron`` only.
    """

    def jacobians(self, x: Inputs, enable_backprop: bool = False) -> tuple[Tensor, Tensor]:
        """Jacobians [N, C, P] and outputs [N, C]; outputs of another shape keep it in both.

        With ``enable_backprop`` both can be differentiated, and are torch.func's.
        """
        if enable_backprop:
            return super().jacobians(x, enable_backprop=True)
        js, f = self._jacobian(x, self.params)
        return self._subnetwork(js.reshape(*f.shape, js.shape[-1])), f

    def last_layer_jacobians(
        self, x: Inputs, enable_backprop: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Jacobians [N, C, P] in the parameters of a ``FeatureExtractor``'s last layer alone."""
        if enable_backprop:
            return super().last_layer_jacobians(x, enable_backprop=True)
        extractor: Any = self.model
        if extractor.last_layer is None:
            with torch.no_grad():
                extractor.find_last_layer(x)
        layer: Any = extractor.last_layer
        return self._jacobian(x, list(layer.parameters()))

    def selected_output_jacobians(
        self, x: Inputs, outputs: Tensor, enable_backprop: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Jacobians [N, k, P] of ``outputs`` [N] or [N, k] of each sample; no others are made."""
        if enable_backprop:
            return super().selected_output_jacobians(x, outputs, enable_backprop=True)
        picked = outputs.unsqueeze(1) if outputs.dim() == 1 else outputs
        js, f = self._jacobian(x, self.params, picked)
        return self._subnetwork(js), f

    def gradients(self, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients [N, P] of each sample's ``lossfunc``, and the sum of the losses."""
        seen = KeptOutputs(y)
        found = sample_gradients(
            self.model, [((x,), y)], self.lossfunc, params=self.names_of(self.params), output=seen
        )
        return self._subnetwork(found), self.lossfunc(seen.of(len(found)), y)

    def _jacobian(
        self, x: Inputs, params: list[nn.Parameter], outputs: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """[N, D, P] of flattened outputs, or [N, k, P] of some, and the outputs."""
        seen = KeptOutputs()
        found = jacobian(
            self.model, [(x,)], params=self.names_of(params), outputs=outputs, output=seen
        )
        return found, seen.of(len(found))

    def _diag(self, x: Inputs, y: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        chosen, seen = self._chosen(), KeptOutputs(y)
        found = diag(
            self.model, [((x,), y)], self.lossfunc, params=chosen.names, output=seen, **options
        )
        flat = torch.cat([found[name].flatten() for name in chosen.names])
        return self._scaled_loss(seen.of(found.count), y), self.factor * flat[chosen.within]

    def _full(self, x: Inputs, y: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        chosen, seen = self._chosen(), KeptOutputs(y)
        found = full(
            self.model,
            [((x,), y)],
            self.lossfunc,
            params=chosen.names,
            output=seen,
            entries=chosen.entries,
            limit=2**63,  # laplace-torch holds such a matrix already.
            **options,
        )
        matrix = found.matrix[chosen.place][:, chosen.place]
        return self._scaled_loss(seen.of(found.count), y), self.factor * matrix

    def _kron(self, x: Inputs, y: Tensor, N: int, **options: Any) -> tuple[Tensor, Kron]:
        names, seen = self.names_of(self.params), KeptOutputs(y)
        found = kron(self.model, [((x,), y)], self.lossfunc, params=names, output=seen, **options)
        loss = self._scaled_loss(seen.of(next(iter(found.values())).count), y)
        factors: Any = [kron_factors(name, found[name], N) for name in names]
        return loss, self.factor * Kron(factors)

    def _scaled_loss(self, f: Tensor, y: Tensor) -> Tensor:
        return self.factor * self.lossfunc(f, y)

    def names_of(self, params: list[nn.Parameter]) -> list[str]:
        """Names that parameters have in the whole model, in its order."""
        wanted = {id(parameter) for parameter in params}
        return [name for name, p in self.model.named_parameters() if id(p) in wanted]

    def _subnetwork(self, js: Tensor) -> Tensor:
        return js if self.subnetwork_indices is None else js[..., self.subnetwork_indices]

    def _chosen(self) -> _Chosen:
        sizes = {
            name: p.numel() for name, p in zip(self.names_of(self.params), self.params, strict=True)
        }
        return _Chosen.of(sizes, self.subnetwork_indices)


class LaplaceTorchGGN(LaplaceTorchBackend, GGNInterface):
    """Gauss-Newton curvature, or with ``stochastic=True`` the Fisher from sampled labels.

    ``backend_kwargs={"stochastic": True, "num_samples": 10}`` draws ten labels a sample. ``kron``
    and ``full`` also take ``mc_samples``, and ``kron`` takes ``kfac_approx="reduce"``, by the names
    that laplace-torch's default backend has for them.
    """

    def diag(self, x: Inputs, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Loss, and the diagonal [P] or of the subnetwork."""
        return self._diag(x, y, **self._columns(kwargs))

    def full(self, x: Inputs, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Loss, and the matrix [P, P] or of the subnetwork."""
        return self._full(x, y, **self._columns(kwargs))

    def kron(self, x: Inputs, y: Tensor, N: int, **kwargs: Any) -> tuple[Tensor, Kron]:
        """Loss, and the Kronecker factors of each parameter."""
        sharing = kwargs.pop("kfac_approx", "expand")
        return self._kron(x, y, N, sharing=sharing, **self._columns(kwargs))

    def _columns(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        samples = kwargs.pop("mc_samples", self.num_samples)
        _check_options(kwargs)
        return {"method": "mc", "samples": samples} if self.stochastic else {"method": "exact"}


class LaplaceTorchEF(LaplaceTorchBackend, EFInterface):
    """The empirical Fisher: gradients at the true labels."""

    def diag(self, x: Inputs, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Loss, and the diagonal [P] or of the subnetwork."""
        _check_options(kwargs)
        return self._diag(x, y, method="empirical")

    def full(self, x: Inputs, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Loss, and the matrix [P, P] or of the subnetwork."""
        _check_options(kwargs)
        return self._full(x, y, method="empirical")

    def kron(self, x: Inputs, y: Tensor, N: int, **kwargs: Any) -> tuple[Tensor, Kron]:
        """Loss, and the Kronecker factors of each parameter."""
        sharing = kwargs.pop("kfac_approx", "expand")
        _check_options(kwargs)
        return self._kron(x, y, N, method="empirical", sharing=sharing)


def _check_options(kwargs: dict[str, Any]) -> None:
    strange = [name for name in kwargs if name != "N"]
    if strange:
        raise TypeError(f"this backend has options kfac_approx and mc_samples, not {strange}")


@dataclass(frozen=True)
class _Chosen:
    """Parameters that a subnetwork has entries of, or all of them.

    The entries are ``within`` the chosen parameters, concatenated, and at ``place``
    among their ``entries``, which are unique and sorted.
    """

    names: list[str]
    within: Tensor | EllipsisType = ...
    entries: dict[str, Tensor] | None = None
    place: Tensor | EllipsisType = ...

    @classmethod
    def of(cls, sizes: dict[str, int], indices: Tensor | None) -> _Chosen:
        """Those of ``indices`` into all parameters, of given ``sizes``."""
        if indices is None:
            return cls(list(sizes))
        total = sum(sizes.values())
        if len(indices) == 0 or bool(((indices < 0) | (indices >= total)).any()):
            raise ValueError(f"subnetwork_indices: some of 0 to {total - 1} are needed")
        unique, place = indices.unique(return_inverse=True)
        entries: dict[str, Tensor] = {}
        within: list[Tensor] = []
        first = used = 0
        for name, size in sizes.items():
            own = unique[(unique >= first) & (unique < first + size)] - first
            if len(own):
                entries[name] = own
                within.append(own + used)
                used += size
            first += size
        return cls(list(entries), torch.cat(within)[place], entries, place)


class KeptOutputs:
    """Keeps the outputs of the batch, so that the loss needs no second forward pass.

    Class labels ``y`` [N, *positions] say where the classes are: in dimension 1, as in torch, or
    else in the last one.
    """

    def __init__(self, y: Tensor | None = None) -> None:
        self.y = y
        self._seen: dict[int, Tensor] = {}

    def __call__(self, f: Tensor) -> Tensor:
        """The outputs with the classes in dimension 1."""
        y = self.y
        if y is not None and not y.is_floating_point() and f.dim() > 2:
            f = f.movedim(-1, 1) if f.shape[1:-1] == y.shape[1:] != f.shape[2:] else f
        self._seen[len(f)] = f.detach()
        return f

    def of(self, count: int) -> Tensor:
        """The last outputs of so many samples."""
        return self._seen[count]
