"""The structure that is chosen where none is given, from a model's outputs and parameters.

=========================  ==========================  ==================  =====================
outputs of one sample      uncertain parameters        structure           predictions
=========================  ==========================  ==================  =====================
up to 4                    all, up to 5 million        kron, exact         linearised
up to 4096                 those of the last layer     kron, exact         linearised
more                       those of the last layer     kron or diag, mc    draws
=========================  ==========================  ==================  =====================

A predicted variance costs a backward pass for each output, but little of it for the last layer,
which predicts as well in classification. Draws of the linearised function cost the same for any
number of outputs. Kronecker factors of a side of more than 4096 are diagonals instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import nn

from lapkernels.curvature.data.batches import Batch, Output, batches_of, is_batch
from lapkernels.curvature.data.contents import Contents, Parameters, parameters_of
from lapkernels.curvature.data.processes import Shard
from lapkernels.curvature.quantities.last_layer import last_layer
from lapkernels.laplace.predictive.prediction import How

# Outputs and parameters up to which all layers are uncertain, and outputs that are predicted one by
# one; also the largest side of a Kronecker factor.
FEW_OUTPUTS, FEW_PARAMETERS, MANY = 4, 5_000_000, 4096


@dataclass(frozen=True)
class Default:
    """What was chosen, and why."""

    structure: str
    method: str
    names: tuple[str, ...]
    how: How
    reason: str

    def merge(self, other: Default) -> Default:
        """That of the first of two processes."""
        return self


def default_for(
    model: nn.Module, batch: Batch | None, params: Parameters, output: Output
) -> Default | None:
    """From one pass over two samples; None without any."""
    if batch is None:
        return None
    chosen = parameters_of(Contents.of(model), params)
    last = last_layer(model, batch.part(0, min(2, batch.count)).inputs, params, output)
    size = sum(parameter.numel() for parameter in chosen.values())
    if last.outputs <= FEW_OUTPUTS and size <= FEW_PARAMETERS:
        return Default("kron", "exact", tuple(chosen), "linearised", "few outputs: all layers")
    reason = f"{last.outputs:,} outputs and {size:,} parameters: the last layer"
    if last.outputs <= MANY:
        return Default("kron", "exact", last.names, "linearised", reason)
    wide = max(max(chosen[name].shape) for name in last.names) > MANY
    return Default("diag" if wide else "kron", "mc", last.names, "draws", reason)


def first_of(data: Any) -> tuple[Batch | None, Any]:
    """The first batch, None if there is none, and data that still have it."""
    if isinstance(data, Shard):
        first, rest = first_of(data.batches)
        return first, data if rest is data.batches else Shard(rest)
    if is_batch(data) or not isinstance(data, Iterable):
        return next(batches_of(data)), data
    found = next(iter(data), None)
    if found is None:
        return None, data
    whole = chain([found], data) if isinstance(data, Iterator) else data
    return next(batches_of([found])), whole
