"""Brute force in float64 through autograd: what every curvature must equal.

One sample at a time, one backward pass for each output, every matrix dense. Nothing here uses the
package. A sample is a slice of length one of the first dimension of every input tensor.

Matrices [P, P] order parameters as `parameters_to_vector` does, without those that are frozen; a
parameter that is used under two names counts once, under its first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel

Inputs = Tensor | tuple[Any, ...] | dict[str, Any]
Select = Callable[[Any], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]

# Negative log-likelihood of one sample, without constants: f [1, D...] and its label to a scalar.
LIKELIHOODS: dict[str, Loss] = {
    "gaussian": lambda f, y: 0.5 * F.mse_loss(f, y, reduction="sum"),
    "categorical": lambda f, y: F.cross_entropy(f, y, reduction="sum"),
    "bernoulli": lambda f, y: F.binary_cross_entropy_with_logits(f, y, reduction="sum"),
    "poisson": lambda f, y: F.poisson_nll_loss(f, y, log_input=True, reduction="sum"),
}


def labels(f: Tensor, likelihood: str, seed: int = 0) -> Tensor:
    """Labels that the likelihood accepts for outputs `f` [N, ...]; classes are dim 1."""
    generator = torch.Generator().manual_seed(seed)
    if likelihood == "categorical":
        shape = (f.shape[0], *f.shape[2:])
        return torch.randint(f.shape[1], shape, generator=generator)
    if likelihood == "gaussian":
        return torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f.dtype)
    high = {"bernoulli": 2, "poisson": 5}[likelihood]
    return torch.randint(high, f.shape, generator=generator).to(f.dtype)


def in_double(model: nn.Module) -> nn.Module:
    """A copy of the model in float64; the user's own is never touched."""
    return copy.deepcopy(model).double()


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that curvature is about, each once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def samples(x: Inputs) -> Iterator[Inputs]:
    """One sample after another, floating point inputs in float64."""
    tensors = [x] if isinstance(x, Tensor) else x.values() if isinstance(x, dict) else x
    sizes = {tensor.shape[0] for tensor in tensors if isinstance(tensor, Tensor)}
    assert len(sizes) == 1, f"inputs disagree on the number of samples: {sizes}"

    def part(value: Any, n: int) -> Any:
        if not isinstance(value, Tensor):
            return value
        # A copy: the model may write to its input.
        value = value[n : n + 1].clone()
        return value.double() if value.is_floating_point() else value

    for n in range(sizes.pop()):
        if isinstance(x, dict):
            yield {name: part(value, n) for name, value in x.items()}
        elif isinstance(x, tuple):
            yield tuple(part(value, n) for value in x)
        else:
            yield part(x, n)


def call(model: nn.Module, x: Inputs, output: Select | None = None) -> Tensor:
    """The model's output tensor for inputs given as a tensor, positionally or by name."""
    if isinstance(x, dict):
        found = model(**x)
    else:
        found = model(*x) if isinstance(x, tuple) else model(x)
    return output(found) if output else found


def jacobians(
    model: nn.Module, x: Inputs, output: Select | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """J of each parameter [N, D, *parameter], D outputs flattened, and the outputs f [N, ...]."""
    model = in_double(model)
    parameters = trainable(model)
    rows: dict[str, list[Tensor]] = {name: [] for name in parameters}
    outputs: list[Tensor] = []
    for sample in samples(x):
        f = call(model, sample, output)
        assert f.shape[:1] == (1,), f"an output of shape {tuple(f.shape)} has no sample dimension"
        found = jacobian(f, list(parameters.values()))
        for name, row in zip(parameters, found, strict=True):
            rows[name].append(row)
        outputs.append(f.detach())
    return {name: torch.stack(row) for name, row in rows.items()}, torch.cat(outputs)


def jacobian(f: Tensor, variables: Sequence[Tensor]) -> list[Tensor]:
    """[D, *variable] for each variable, D entries of `f`; zero where f does not depend on it."""
    rows = [
        grad(entry, variables, retain_graph=True, allow_unused=True, materialize_grads=True)
        if entry.requires_grad
        else [torch.zeros_like(variable) for variable in variables]
        for entry in f.reshape(-1)
    ]
    # to_dense: an embedding may give sparse gradients.
    return [
        torch.stack([g.to_dense() for g in column]).detach() for column in zip(*rows, strict=True)
    ]


def flat_jacobians(
    model: nn.Module, x: Inputs, output: Select | None = None
) -> tuple[Tensor, Tensor]:
    """J [N, D, P] of all parameters, and the outputs."""
    found, f = jacobians(model, x, output)
    return torch.cat([j.reshape(*j.shape[:2], -1) for j in found.values()], 2), f


def loss_of(likelihood: str | Loss) -> Loss:
    """The loss of one sample: looked up, or the caller's own."""
    return LIKELIHOODS[likelihood] if isinstance(likelihood, str) else likelihood


def output_hessian(f: Tensor, y: Tensor, likelihood: str | Loss) -> Tensor:
    """[N, D, D]: second derivatives of each sample's loss by its own outputs."""
    loss = loss_of(likelihood)
    found: list[Tensor] = []
    for n in range(f.shape[0]):
        entry = f[n : n + 1].double().detach().requires_grad_()
        label = _label(y, n)
        (first,) = grad(loss(entry, label), entry, create_graph=True)
        found.append(jacobian(first, [entry])[0].flatten(1))
    return torch.stack(found)


def _label(y: Tensor, n: int) -> Tensor:
    label = y[n : n + 1]
    return label.double() if label.is_floating_point() else label


def ggn(
    model: nn.Module,
    x: Inputs,
    y: Tensor,
    likelihood: str | Loss = "gaussian",
    output: Select | None = None,
) -> Tensor:
    """Sum over samples of J^T H J [P, P]."""
    j, f = flat_jacobians(model, x, output)
    return torch.einsum("ncp,ncd,ndq->pq", j, output_hessian(f, y, likelihood), j)


def empirical(
    model: nn.Module,
    x: Inputs,
    y: Tensor,
    likelihood: str | Loss = "gaussian",
    output: Select | None = None,
) -> Tensor:
    """Sum over samples of g g^T [P, P], g the gradient of one sample's loss at its true label."""
    model, loss = in_double(model), loss_of(likelihood)
    parameters = list(trainable(model).values())
    found = torch.zeros(())
    for n, sample in enumerate(samples(x)):
        total = loss(call(model, sample, output), _label(y, n))
        g = torch.cat([row.reshape(-1) for row in jacobian(total, parameters)])
        found = found + g[:, None] * g
    return found


def hessian(
    model: nn.Module,
    x: Inputs,
    y: Tensor,
    likelihood: str | Loss = "gaussian",
    output: Select | None = None,
) -> Tensor:
    """Hessian [P, P] of the summed loss, by differentiating each sample's gradient."""
    # Only this attention can be differentiated twice.
    with sdpa_kernel(SDPBackend.MATH):
        return _hessian(in_double(model), x, y, loss_of(likelihood), output)


def _hessian(model: nn.Module, x: Inputs, y: Tensor, loss: Loss, output: Select | None) -> Tensor:
    parameters = list(trainable(model).values())
    found = torch.zeros(())
    for n, sample in enumerate(samples(x)):
        total = loss(call(model, sample, output), _label(y, n))
        first = grad(
            total, parameters, create_graph=True, allow_unused=True, materialize_grads=True
        )
        flat = torch.cat([g.to_dense().reshape(-1) for g in first])
        rows = jacobian(flat, parameters)
        found = found + torch.cat([row.reshape(len(flat), -1) for row in rows], 1)
    return found


def slices(model: nn.Module) -> dict[str, slice]:
    """Where each parameter lies in [P, P]."""
    found: dict[str, slice] = {}
    start = 0
    for name, parameter in trainable(model).items():
        found[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    return found


def diag(matrix: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """The diagonal of [P, P], each parameter's in its own shape."""
    where, parameters = slices(model), trainable(model)
    diagonal = matrix.diagonal()
    return {name: diagonal[where[name]].reshape(p.shape) for name, p in parameters.items()}


def block(matrix: Tensor, model: nn.Module, row: str, column: str | None = None) -> Tensor:
    """Rows of one parameter, columns of another (or of the same)."""
    where = slices(model)
    return matrix[where[row], where[column or row]]


def layer_block(matrix: Tensor, model: nn.Module, names: Sequence[str]) -> Tensor:
    """The block of several parameters together, such as a layer's weight and bias."""
    rows = [[block(matrix, model, row, column) for column in names] for row in names]
    return torch.cat([torch.cat(row, 1) for row in rows])


def gather_blocks(matrix: Tensor, entries: Tensor) -> Tensor:
    """[..., m, m] of the rows and columns `entries` [..., m]."""
    return matrix[entries[..., :, None], entries[..., None, :]]
