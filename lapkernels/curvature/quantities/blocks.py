r"""Diagonal blocks of the Gauss-Newton matrix, :math:`\sum_{n,v} G_{n,v} G_{n,v}^T`, at any grain.

========= =========================== ==============================================================
by        key                         value
========= =========================== ==============================================================
layer     path of the module          [P, P] of all its parameters together, in the model's order
parameter name of the parameter       [P, P], row-major as the parameter
neuron    name of the parameter       [O, I * K, I * K] of a weight: inputs of one output channel;
                                      [O, 1, 1] of a bias
kernel    name of the parameter       [O, I, K, K] of a convolution's weight (a transposed one:
                                      [I, O, K, K]), [O, I, 1, 1] of a matrix, [O, 1, 1] of a bias
========= =========================== ==============================================================

The neurons of a weight are found from how the model uses it; of other tensors they are the entries
of dimension 0, so that an embedding has a block for each token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lapkernels.curvature.backward.parameter_uses import (
    matrix_entries,
    matrix_shape,
    parameter_uses,
    same_entries,
)
from lapkernels.curvature.data.autocast import for_models_alone
from lapkernels.curvature.data.batches import Output, check_choice
from lapkernels.curvature.data.contents import Parameters
from lapkernels.curvature.data.processes import summed
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.passes.passes import Pass, Route
from lapkernels.curvature.quantities.joint import LIMIT, JointBlocks, check_limit
from lapkernels.curvature.quantities.loop import ColumnSum, Loop, OutputFactor, Sampler
from lapkernels.curvature.recording.graph import Share
from lapkernels.curvature.results.summary import ByName, finite
from lapkernels.likelihoods import resolve
from lapkernels.ops.base.precision import wide
from lapkernels.rules import WeightUse

Method = Literal["exact", "mc", "empirical"]
By = Literal["layer", "neuron", "kernel", "parameter"]


@dataclass(frozen=True, repr=False)
class Blocks(ByName[Tensor]):
    """Blocks of a curvature matrix; ``names`` has the parameters of the block of each key.

    ``positions`` [.., m] has the entries of the rows of each block [.., m, m], as indices into
    those parameters, flattened and concatenated.
    """

    names: dict[str, tuple[str, ...]]
    by: str
    positions: dict[str, Tensor]

    def merge(self, other: Blocks) -> Blocks:
        """The sum over both data sets."""
        summary = self.summary.merged(other.summary)
        values = {key: value + other[key] for key, value in self.items()}
        for key, known in self.positions.items():
            if not torch.equal(known, other.positions[key]):
                raise ValueError(f"the blocks of {key} belong to different uses of the parameter")
        return Blocks(values, summary, self.names, self.by, self.positions)


@summed
@for_models_alone
@torch.no_grad()
def blocks(
    model: nn.Module,
    data: Any,
    likelihood: Any = "gaussian",
    method: Method = "exact",
    by: By = "layer",
    *,
    params: Parameters = None,
    output: Output = None,
    samples: int = 1,
    sampler: Sampler = "labels",
    memory_budget: int | None = None,
    limit: int = LIMIT,
    generator: torch.Generator | None = None,
    progress: bool = False,
    explain: bool = False,
    route: Route = "auto",
) -> Blocks:
    """Blocks of the Gauss-Newton matrix by layer, parameter, neuron or kernel.

    All blocks together may have ``limit`` bytes; more is refused.
    """
    check_choice("method", method, Method)
    check_choice("by", by, By)
    factor = OutputFactor(resolve(likelihood), method, samples, sampler, generator)
    options = (params, output, memory_budget, progress, route)
    loop = Loop(model, data, factor, *options, explain=explain)
    chosen, names = loop.chosen, _names(loop.chosen, by)
    total = JointBlocks(chosen, names, limit) if by == "layer" else EntryBlocks(chosen, by, limit)
    loop.add_to(total)
    summary = loop.summary(f"{method} by {by}")
    return Blocks(finite(total.matrices), summary, names, by, total.positions)


class EntryBlocks(ColumnSum):
    """Blocks within single parameters: of all entries, of a neuron or of a kernel."""

    def __init__(self, parameters: dict[str, nn.Parameter], by: By, limit: int) -> None:
        self.parameters, self.by = parameters, by
        # Which flat entries the rows of each block are.
        self.positions = {name: _entries(p, by) for name, p in parameters.items()}
        self._layouts: dict[str, tuple[tuple[int, ...], Tensor | None]] = {}
        self._sums: dict[str, Tensor] = {}
        element = wide(next(iter(parameters.values())).dtype).itemsize
        sizes = {k: e.numel() * e.shape[-1] * element for k, e in self.positions.items()}
        key = max(sizes, key=sizes.__getitem__)
        shape = [*self.positions[key].shape, self.positions[key].shape[-1]]
        check_limit(sum(sizes.values()), limit, f"{key} with {shape}")

    @property
    def matrices(self) -> dict[str, Tensor]:
        """The blocks; zeros for a parameter that was not used."""
        return {name: self._sum_of(name) for name in self.parameters}

    def begin(self, one: Pass) -> Pass:
        """Find the neurons of this batch's weights."""
        if self.by != "neuron":
            return one
        for name, shares in parameter_uses(one.graph).direct.items():
            for share in shares.values():
                if not isinstance(share.use, WeightUse):
                    continue
                parameter = self.parameters[name]
                groups, out, features = matrix_shape(share.use)
                size, entries = (groups * out, features), matrix_entries(share, parameter)
                if name not in self._layouts and name in self._sums:
                    self._layouts[name] = tuple(self.positions[name].shape), None
                elif name not in self._layouts:
                    self._layouts[name] = size, entries
                    if entries is None:
                        entries = torch.arange(parameter.numel(), device=parameter.device)
                    self.positions[name] = entries.reshape(size)
                    continue
                known_size, known = self._layouts[name]
                if size != known_size or not same_entries(entries, known):
                    raise Refused(
                        f"{name} is used several times with other outputs, so its neurons are not "
                        "defined; by='parameter' works"
                    )
        return one

    def share(self, share: Share, s: Tensor) -> None:
        entries = self.positions[share.name]
        if entries.shape[-1] == 1:
            # Blocks of one entry are the diagonal, which needs no Jacobian.
            squares = share.to_parameter(share.use.squared_sum(s)).flatten()
            picked = squares.index_select(0, entries.flatten()).reshape(*entries.shape, 1)
            self._sum_of(share.name).add_(picked)
            return
        for columns, rows in share.use.chunks(s):
            self._add(share.name, share.jacobian(s[columns], rows))

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        self._add(name, g.reshape(*g.shape[:2], -1))

    def _add(self, name: str, g: Tensor) -> None:
        entries, total = self.positions[name], self._sum_of(name)
        size = entries.shape[-1]
        picked = g.flatten(0, 1)[:, entries.flatten()]
        parts = picked.reshape(len(picked), -1, size).transpose(0, 1)
        total.view(-1, size, size).baddbmm_(parts.mT, parts)

    def _sum_of(self, name: str) -> Tensor:
        """The blocks added up so far."""
        if name not in self._sums:
            entries, parameter = self.positions[name], self.parameters[name]
            shape = (*entries.shape, entries.shape[-1])
            self._sums[name] = parameter.new_zeros(shape, dtype=wide(parameter.dtype))
        return self._sums[name]


def _names(parameters: dict[str, nn.Parameter], by: By) -> dict[str, tuple[str, ...]]:
    if by != "layer":
        return {name: (name,) for name in parameters}
    found: dict[str, tuple[str, ...]] = {}
    for name in parameters:
        path = name.rpartition(".")[0]
        found[path] = (*found.get(path, ()), name)
    return found


def _entries(parameter: Tensor, by: By) -> Tensor:
    """Which flat entries share a block: [.., m], blocks of the last dimension."""
    entries = torch.arange(parameter.numel(), device=parameter.device)
    if by == "parameter":
        return entries
    if parameter.dim() < 2:
        return entries.unsqueeze(1)
    if by == "neuron":
        return entries.reshape(parameter.shape[0], -1)
    return entries.reshape(*parameter.shape[:2], -1)
