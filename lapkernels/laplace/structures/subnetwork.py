r"""A full matrix over few entries; all others count as known.

A first sweep finds the diagonal h and with it the variances
:math:`\sigma^2 = 1 / (c h + \lambda)` of independent entries. The subnetwork has the entries of
largest

- :math:`\sigma^2` ("variance"), which is nearest to the independent posterior of all entries in the
  2-Wasserstein distance (Daxberger et al., Bayesian deep learning via subnetwork inference, 2021).
  Under one precision for all weights those may be entries on which no output depends, whose
  variance is the prior's;
- :math:`\sigma^2 \sum_{n,v} J_{nv}^2` ("outputs"), their share of the variance of all outputs at
  given inputs: those where uncertainty matters, the gaps between the data included;
- scores of your own: the variances of weights along SGD, as in that paper, by ``Swag``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from lapkernels.curvature import Diagonal, Full, diag, full
from lapkernels.curvature.data.exchange import use_processes
from lapkernels.curvature.results.summary import Summary
from lapkernels.laplace.posterior import Posterior, Precision, Shapes
from lapkernels.laplace.structures.dense import DenseBlocks, DensePosterior
from lapkernels.laplace.structures.diag import Diag
from lapkernels.laplace.structures.full import pack_slices, unpack_slices, wrong_matrix
from lapkernels.laplace.structures.structure import Packed, Structure, Subject


@dataclass(frozen=True)
class Entries:
    """Flat indices of the uncertain entries of each parameter."""

    by_name: dict[str, Tensor]
    summary: Summary


@dataclass(frozen=True)
class SubnetworkState:
    """The curvature of some entries."""

    full: Full
    entries: Entries

    @property
    def summary(self) -> Summary:
        """Of the full curvature."""
        return self.full.summary

    def merge(self, other: SubnetworkState) -> SubnetworkState:
        """The sum of both, which must have the same entries."""
        for name, index in self.entries.by_name.items():
            if not torch.equal(index, other.entries.by_name[name]):
                raise ValueError(f"the subnetworks differ in {name}: give both the same entries=")
        return SubnetworkState(self.full.merge(other.full), self.entries)


@dataclass(frozen=True)
class Subnetwork(Structure):
    """``size`` entries of largest score, or ``entries`` with flat indices by name.

    The score is ``by``: "variance", "outputs" at ``inputs`` (batches as :func:`lapkernels.diag`
    takes them), or tensors by name.
    """

    methods = ("exact", "mc", "empirical")
    options = ("size", "by", "inputs", "entries", "samples", "sampler", "limit")
    first = Diag()

    def between(self, subject: Subject, state: Diagonal) -> Entries:
        given = subject.options.get("entries")
        if given is not None:
            return Entries(_checked(given, subject.parameters), state.summary)
        size = subject.options.get("size")
        total = sum(p.numel() for p in subject.parameters.values())
        if size is None or not 1 <= size <= total:
            raise ValueError(f"structure 'subnetwork' needs size=1 to {total}, or entries=")
        values = {name: v.double().flatten() for name, v in _scores(subject, state).items()}
        chosen = torch.cat(list(values.values())).topk(size).indices.sort().values
        found, start = {}, 0
        for name, value in values.items():
            inside = (chosen >= start) & (chosen < start + len(value))
            found[name] = chosen[inside] - start
            start += len(value)
        return Entries(found, state.summary)

    def measure(self, subject: Subject, batch: Any, basis: Entries) -> SubnetworkState:
        own = ("size", "by", "inputs", "entries")
        options = {k: v for k, v in subject.arguments.items() if k not in own}
        found = full(subject.model, batch, entries=basis.by_name, **options)
        return SubnetworkState(found, basis)

    def posterior(
        self, state: SubnetworkState, shapes: Shapes, precision: Precision, scale: Tensor
    ) -> Posterior:
        places, start = [], 0
        for name, shape in shapes.items():
            places.append(state.entries.by_name[name] + start)
            start += torch.Size(shape).numel()
        matrix, positions = state.full.matrix.unsqueeze(0), torch.cat(places).unsqueeze(0)
        blocks = DenseBlocks(tuple(shapes), matrix, positions)
        return DensePosterior(shapes, precision, scale, [blocks])

    def pack(self, state: SubnetworkState) -> Packed:
        tensors = {"matrix": state.full.matrix, **self.pack_basis(state.entries).tensors}
        return Packed(tensors, pack_slices(state.full.slices), state.summary)

    def wrong_with(self, state: SubnetworkState, shapes: Shapes) -> str | None:
        entries = state.entries.by_name
        if set(entries) != set(shapes):
            return f"entries of {list(entries)}, not of {list(shapes)}"
        for name, index in entries.items():
            if index.dtype != torch.long or not torch.equal(index.flatten().unique(), index):
                return f"the entries of {name} are no sorted indices"
            if len(index) and not 0 <= int(index[0]) <= int(index[-1]) < prod(shapes[name]):
                return f"the entries of {name} are outside of {shapes[name]}"
        size = sum(len(index) for index in entries.values())
        return wrong_matrix(state.full.matrix, size, state.full.slices, shapes)

    def unpack(self, packed: Packed, basis: Entries | None) -> SubnetworkState:
        found = Full(packed.tensors["matrix"], unpack_slices(packed.data), packed.summary)
        return SubnetworkState(found, basis or self.unpack_basis(packed))

    def pack_basis(self, basis: Entries) -> Packed:
        tensors = {f"{name}/entries": index for name, index in basis.by_name.items()}
        return Packed(tensors, {}, basis.summary)

    def unpack_basis(self, packed: Packed) -> Entries:
        ending = "/entries"
        found = {k.removesuffix(ending): v for k, v in packed.tensors.items() if k.endswith(ending)}
        return Entries(found, packed.summary)


def _scores(subject: Subject, state: Diagonal) -> Mapping[str, Tensor]:
    """How much each entry is wanted in the subnetwork, of the parameters' shapes."""
    by, inputs = subject.options.get("by", "variance"), subject.options.get("inputs")
    if (inputs is not None) != (isinstance(by, str) and by == "outputs"):
        raise ValueError("by='outputs' needs inputs=, batches of inputs, and nothing else takes it")
    if isinstance(by, Mapping):
        return _given_scores(by, subject.parameters)
    if by not in ("variance", "outputs"):
        raise ValueError(f"by={by!r} must be 'variance', 'outputs', or scores by parameter name")
    precision, scale = subject.prior, subject.scale
    variance = Diag().posterior(state, subject.shapes, precision, scale).variance()
    if by == "variance":
        return variance
    # Every process has all the inputs, and finds the same.
    with use_processes(None):
        squares = diag(
            subject.model, inputs, "gaussian", params=list(variance), output=subject.output
        )
    return {name: value * squares[name] for name, value in variance.items()}


def _given_scores(
    given: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        value = given.get(name)
        if not isinstance(value, Tensor) or value.shape != parameter.shape:
            raise ValueError(f"by: a tensor {tuple(parameter.shape)} of scores of {name} is needed")
        if not bool(value.isfinite().all()):
            raise ValueError(f"by: the scores of {name} are not finite")
        found[name] = value.detach().to(parameter.device)
    return found


def _checked(given: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Indices for every parameter, sorted and once each; none for those that are not named."""
    strange = [name for name in given if name not in parameters]
    if strange:
        raise ValueError(f"entries has names that are no uncertain parameters: {strange}")
    found: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        index = torch.as_tensor(given.get(name, []), dtype=torch.long, device=parameter.device)
        index = index.flatten().unique()
        if len(index) and not 0 <= int(index[0]) <= int(index[-1]) < parameter.numel():
            raise ValueError(f"entries of {name}: 0 to {parameter.numel() - 1} are possible")
        found[name] = index
    if not any(len(index) for index in found.values()):
        raise ValueError("entries chooses nothing")
    return found
