"""Diagonal blocks of A: by layer, parameter, neuron or convolution kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lapkernels.curvature import Blocks, blocks
from lapkernels.laplace.posterior import Posterior, Precision, Shapes
from lapkernels.laplace.structures.dense import DenseBlocks, DensePosterior
from lapkernels.laplace.structures.full import count_of
from lapkernels.laplace.structures.structure import Packed, Structure, Subject


@dataclass(frozen=True)
class BlockDiagonal(Structure):
    """Dense blocks at the grain ``by`` of ``lk.blocks``."""

    methods = ("exact", "mc", "empirical")
    options = ("by", "samples", "sampler", "limit")

    def measure(self, subject: Subject, batch: Any, basis: Any) -> Blocks:
        return blocks(subject.model, batch, **subject.arguments)

    def posterior(
        self, state: Blocks, shapes: Shapes, precision: Precision, scale: Tensor
    ) -> Posterior:
        parts = []
        for key, matrices in state.items():
            size = matrices.shape[-1]
            positions = state.positions[key].reshape(-1, size)
            parts.append(DenseBlocks(state.names[key], matrices.reshape(-1, size, size), positions))
        return DensePosterior(shapes, precision, scale, parts)

    def pack(self, state: Blocks) -> Packed:
        tensors = {f"{key}/matrices": value for key, value in state.items()}
        tensors.update({f"{key}/positions": value for key, value in state.positions.items()})
        return Packed(tensors, {"names": state.names, "by": state.by}, state.summary)

    def wrong_with(self, state: Blocks, shapes: Shapes) -> str | None:
        if sorted(name for names in state.names.values() for name in names) != sorted(shapes):
            return f"blocks of {state.names}, not of {list(shapes)}"
        for key, matrices in state.items():
            positions = state.positions[key]
            size = count_of({name: shapes[name] for name in state.names[key]})
            if tuple(matrices.shape) != (*positions.shape, positions.shape[-1]):
                return f"blocks {tuple(matrices.shape)} of {key} at {tuple(positions.shape)}"
            found = positions.flatten().sort().values
            if not torch.equal(found, torch.arange(size, device=found.device)):
                return f"the blocks of {key} are not of all its {size} entries once"
        return None

    def unpack(self, packed: Packed, basis: Any) -> Blocks:
        names = {key: tuple(value) for key, value in packed.data["names"].items()}
        matrices = {key: packed.tensors[f"{key}/matrices"] for key in names}
        positions = {key: packed.tensors[f"{key}/positions"] for key in names}
        return Blocks(matrices, packed.summary, names, packed.data["by"], positions)
