"""Brute force of the approximate and the mixed diagonal: every op that torch runs, with a dense J.

One sample at a time the model is run and each op below autograd is kept with its arguments. Going
back, every value has columns s [V, d], M = sum_v s_v s_v^T, and beside them perhaps a diagonal m.
A value of more than `threshold` entries turns its columns into m = sum_v s_v²; a narrower one turns
m into the columns sqrt(m_j) e_j, kept apart from those of other origin. J^T carries columns over an
op, (J * J)^T a diagonal. With no threshold all M are exact, with threshold 0 none is.

Parameters, and what a model computes from parameters alone, keep what they get.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import inf

import torch
from torch import Tensor, nn

from tests.curvature import oracle
from tests.curvature.op_recording import Op, Recorded, recorded


def mixed_diagonal(
    model: nn.Module,
    x: oracle.Inputs,
    y: Tensor,
    likelihood: str | oracle.Loss = "gaussian",
    output: oracle.Select | None = None,
    threshold: float = inf,
) -> dict[str, Tensor]:
    """The diagonal with M exact at values of at most `threshold` entries."""
    passes = recorded(model, x, output)
    h = oracle.output_hessian(torch.cat([one.f for one in passes]), y, likelihood)
    return diagonal(model, passes, h, threshold)


def diagonal(
    model: nn.Module, passes: Sequence[Recorded], h: Tensor, threshold: float
) -> dict[str, Tensor]:
    """The same of samples already run, for output Hessians h [N, D, D]; each J is made once."""
    shapes = {name: p.shape for name, p in oracle.trainable(model).items()}
    found = {name: torch.zeros(shape, dtype=h.dtype) for name, shape in shapes.items()}
    for one, own in zip(passes, h, strict=True):
        value = one.start()
        if value.numel > threshold:
            value.m = own.diagonal()
        else:
            levels, vectors = torch.linalg.eigh(own)
            value.columns[0] = (vectors * levels.clamp(min=0).sqrt()).T
        pull(one.ops, threshold)
        for name, parameter in one.parameters.items():
            squares = [s.square().sum(0) for s in parameter.columns.values()]
            squares += [] if parameter.m is None else [parameter.m]
            for square in squares:
                found[name] += square.reshape(shapes[name])
    return {name: value.detach() for name, value in found.items()}


def pull(ops: list[Op], threshold: float) -> None:
    """Carry what the last value has back to all others."""
    origins = count(1)
    for op in reversed(ops):
        for out in op.outputs:
            out.settle(threshold, origins)
        # An expert that gets no sample has a result without entries.
        reached = [out.numel > 0 and (bool(out.columns) or out.m is not None) for out in op.outputs]
        if not any(reached):
            continue
        rows = op.jacobians(reached)
        for index, value in enumerate(op.inputs):
            for out, row, wanted in zip(op.outputs, rows, reached, strict=True):
                if wanted:
                    j = row[index]
                    m = None if out.m is None else out.m @ j.square()
                    value.add({origin: s @ j for origin, s in out.columns.items()}, m)
