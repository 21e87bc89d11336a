"""The layer that a model runs last, found by running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lapkernels.curvature.data.batches import Output
from lapkernels.curvature.data.contents import Parameters
from lapkernels.curvature.passes.passes import passes


@dataclass(frozen=True)
class LastLayer:
    """The chosen parameters of the module whose weight is used last; outputs of one sample."""

    names: tuple[str, ...]
    outputs: int


@torch.no_grad()
def last_layer(model: nn.Module, x: Any, params: Parameters, output: Output) -> LastLayer:
    """From one pass on a batch ``x`` of inputs. A weight has at least two dimensions."""
    chosen, run = passes(model, [(x, None)], params, output)
    one = next(run)
    outputs = one.prediction.shape[1:].numel()
    for node in reversed(one.graph.sample_nodes):
        for value in node.inputs:
            name = one.graph.behind_views(value)[0].parameter
            if name in chosen and chosen[name].dim() > 1:
                path = name.rpartition(".")[0]
                names = [other for other in chosen if other.rpartition(".")[0] == path]
                return LastLayer(tuple(names) if path else (name,), outputs)
    return LastLayer(tuple(chosen), outputs)
