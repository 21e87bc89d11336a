"""Diagonal curvature and predictive variance of an ``nn.Sequential``, by the ops alone.

Each function walks the layers backwards: from the output, columns of the output Hessian's factor
(or its diagonal) are pulled back through a layer, and the ops turn what arrives at a layer into
that layer's share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lapkernels import ops

Diagonal = dict[str, Tensor]
# Columns carried at once: bounds the memory of `exact` whatever the number of outputs.
CHUNK = 64


@dataclass(frozen=True)
class Step:
    """A module of the network and what it was given."""

    name: str
    module: nn.Module
    x: Tensor

    @property
    def has_parameters(self) -> bool:
        """Whether the module has a share in the curvature."""
        return any(True for _ in self.module.parameters())


def record(model: nn.Sequential, x: Tensor) -> list[Step]:
    """Run the model, keeping every module's input."""
    steps = []
    for name, module in model.named_children():
        steps.append(Step(name, module, x))
        x = module(x)
    return steps


def pulled_back(steps: list[Step], s: Tensor) -> Iterator[tuple[Step, Tensor]]:
    """Each layer with parameters, last first, and the columns [V, N, ...] at its output."""
    for step in reversed(steps):
        if step.has_parameters:
            yield step, s
        if step is not steps[0]:
            pull = torch.func.vjp(step.module, step.x)[1]
            s = torch.func.vmap(pull)(s)[0]


def squared_sum(model: nn.Sequential, steps: list[Step], s: Tensor) -> Diagonal:
    """Sum over samples and columns of the squared Jacobian columns that ``s`` selects."""
    diagonal: Diagonal = {}
    for step, columns in pulled_back(steps, s):
        geometry = ops.Geometry.of(step.module)
        weight = ops.jacobian_squared_sum(columns, step.x, geometry)
        diagonal[f"{step.name}.weight"] = weight
        diagonal[f"{step.name}.bias"] = ops.jacobian_squared_sum_bias(columns, geometry)
    return {name: diagonal[name] for name, _ in model.named_parameters()}


@torch.no_grad()
def exact(model: nn.Sequential, x: Tensor) -> Diagonal:
    """Diagonal of sum_n J_n^T J_n: one column for every output."""
    steps = record(model, x)
    total: Diagonal = {}
    for s in unit_columns(x):
        for name, d in squared_sum(model, steps, s).items():
            total[name] = total[name] + d if name in total else d
    return total


@torch.no_grad()
def monte_carlo(model: nn.Sequential, x: Tensor, columns: int) -> Diagonal:
    """An unbiased estimate of the same from random signs, since E[e e^T] = 1."""
    signs = torch.randint(2, (columns, *x.shape)).to(x) * 2 - 1
    return squared_sum(model, record(model, x), signs / columns**0.5)


@torch.no_grad()
def approx(model: nn.Sequential, x: Tensor) -> Diagonal:
    """Only the diagonal of M = d^2 loss / dz^2 is carried from layer to layer."""
    steps = record(model, x)
    m = torch.ones_like(x)
    diagonal: Diagonal = {}
    index = len(steps) - 1
    while index >= 0:
        step, below = steps[index], steps[max(index - 1, 0)]
        index -= 1
        if step.has_parameters:
            geometry = ops.Geometry.of(step.module)
            diagonal[f"{step.name}.weight"] = ops.squared_conv_weight(m, step.x, geometry)
            diagonal[f"{step.name}.bias"] = ops.squared_conv_bias(m, geometry)
            size = step.x.shape[1:-1] if geometry.is_linear else step.x.shape[2:]
            if isinstance(below.module, nn.ReLU):
                # The activation below comes for free, fused into the same pass.
                fused = {"z": below.x, "activation": "relu"}
                index -= 1
            else:
                fused = {}
            m = ops.squared_conv_input(m, _weight(step.module), size, geometry, **fused)
        elif isinstance(step.module, nn.ReLU):
            m = ops.squared_derivative(m, step.x, "relu")
        elif isinstance(step.module, nn.Flatten | nn.Unflatten):
            m = m.view(step.x.shape)
        else:
            raise TypeError(f"the demo cannot push a diagonal through {step.module}")
    return {name: diagonal[name] for name, _ in model.named_parameters()}


def by_autograd(model: nn.Sequential, x: Tensor) -> Diagonal:
    """The exact diagonal from one backward pass for every sample and output."""
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for sample in x:
        for output in model(sample.unsqueeze(0)).flatten():
            grads = torch.autograd.grad(output, list(parameters.values()), retain_graph=True)
            for name, grad in zip(total, grads, strict=True):
                total[name] += grad.square()
    return total


@torch.no_grad()
def posterior_precision(
    model: nn.Sequential, images: Tensor, method: str, noise: float, prior_precision: float
) -> Diagonal:
    """Precision H / noise + prior of the posterior, H summed over all images."""
    precision = {
        name: torch.full_like(p, prior_precision, requires_grad=False)
        for name, p in model.named_parameters()
    }
    for x in images.split(128):
        d = exact(model, x) if method == "exact" else monte_carlo(model, x, columns=8)
        ops.precision_update(list(precision.values()), list(d.values()), 1.0, 1 / noise)
    return precision


@torch.no_grad()
def predictive_variance(model: nn.Sequential, x: Tensor, precision: Diagonal) -> Tensor:
    """Variance of each output, of the outputs' shape, under the linearised model."""
    steps = record(model, x)
    chunks = []
    for s in unit_columns(x):
        variance = x.new_zeros(x.shape[0], s.shape[0])
        for step, columns in pulled_back(steps, s):
            geometry = ops.Geometry.of(step.module)
            weight, bias = (1 / precision[f"{step.name}.{key}"] for key in ("weight", "bias"))
            ops.jacobian_squared_dot(columns, step.x, weight, geometry, out=variance)
            variance += ops.jacobian_squared_dot_bias(columns, bias, geometry)
        chunks.append(variance)
    return torch.cat(chunks, 1).view(x.shape)


def unit_columns(x: Tensor) -> Iterator[Tensor]:
    """Unit vectors of the output space, which is the input's here, as [V, N, *x.shape[1:]]."""
    outputs = x[0].numel()
    for first in range(0, outputs, CHUNK):
        rows = torch.arange(first, min(first + CHUNK, outputs))
        unit = torch.nn.functional.one_hot(rows, outputs).to(x)
        yield unit.view(-1, 1, *x.shape[1:]).expand(-1, x.shape[0], *x.shape[1:])


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach()
