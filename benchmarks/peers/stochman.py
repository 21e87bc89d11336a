"""StochMan: its layers' diagonal products, chained as its authors do in their autoencoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import diag_approx
from benchmarks.networks import Problem
from benchmarks.oracles import output_diagonal
from benchmarks.peers.common import split


def _stochman_layers(problem: Problem) -> tuple[Any, ...]:
    from stochman import nnj  # pyright: ignore[reportMissingImports]

    assert isinstance(problem.model, nn.Sequential)
    layers = []
    for layer in problem.model:
        made: Any
        if isinstance(layer, nn.Linear):
            made = nnj.Linear(layer.in_features, layer.out_features)
        elif isinstance(layer, nn.Conv2d):
            geometry: Any = (layer.kernel_size, layer.stride, layer.padding)
            made = nnj.Conv2d(layer.in_channels, layer.out_channels, *geometry)
        elif isinstance(layer, nn.MaxPool2d):
            made = nnj.MaxPool2d(layer.kernel_size, layer.stride, layer.padding)
        elif isinstance(layer, nn.Upsample):
            made = nnj.Upsample(scale_factor=layer.scale_factor)
        elif isinstance(layer, nn.Unflatten):
            made = nnj.Reshape(*layer.unflattened_size)
        else:
            made = getattr(nnj, type(layer).__name__)()
        made.load_state_dict(layer.state_dict())
        layers.append(made.to(problem.x.device))
    return problem, layers


@diag_approx.method("StochMan", "peer", setup=_stochman_layers, requires="stochman")
@torch.no_grad()
def _(problem: Problem, layers: list[Any]) -> list[Tensor]:
    values = [problem.x]
    for layer in layers:
        values.append(layer(values[-1]))
    m = output_diagonal(values[-1], problem.likelihood).flatten(1)
    parts: list[Tensor] = []
    for layer, x, value in reversed(list(zip(layers, values, values[1:], strict=False))):
        # Both flags: from a diagonal, to a diagonal.
        found = layer._jacobian_wrt_weight_sandwich(x, value, m, True, True)
        if found is not None:
            parts.append(found.sum(0))
        m = layer._jacobian_wrt_input_sandwich(x, value, m, True, True)
    return split(torch.cat(parts[::-1]), problem)
