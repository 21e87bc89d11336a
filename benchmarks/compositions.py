"""Whole-model quantities in plain torch: what one would write without a package."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vjp, vmap

from benchmarks import limits
from benchmarks.models import (
    diag_approx,
    diag_empirical,
    diag_exact,
    diag_mc,
    forward_and_backward,
    gradient_and_diag_approx,
    kfac,
    kflr,
    predictive_variance,
)
from benchmarks.networks import Likelihood, Problem
from benchmarks.oracles import (
    factored_layers,
    hessian_factor,
    negative_log_likelihood,
    normalised,
    output_diagonal,
    positions,
)

Parameters = dict[str, Tensor]


def _function(problem: Problem) -> tuple[Callable[[Parameters, Tensor], Tensor], Parameters]:
    """The network as a function of its parameters and one sample."""
    model = problem.model
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return lambda values, x: functional_call(model, values, (x[None],))[0], parameters


@diag_exact.method("torch.func", limit=limits.jacobian)
def _(problem: Problem) -> Parameters:
    function, parameters = _function(problem)

    def squares(sample: Tensor) -> Parameters:
        value, pull, *_ = vjp(lambda values: function(values, sample), parameters)
        (columns,) = vmap(pull)(hessian_factor(value, problem.likelihood))
        return {name: g.square().sum(0) for name, g in columns.items()}

    return {name: d.sum(0) for name, d in vmap(squares)(problem.x).items()}


def draw_targets(output: Tensor, likelihood: Likelihood) -> Tensor:
    """Targets from the model's own predictive distribution."""
    if likelihood == "categorical":
        return torch.multinomial(output.softmax(1), 1).squeeze(1)
    return output + torch.randn_like(output)


def _squared_gradients(problem: Problem, targets: Tensor) -> Parameters:
    function, parameters = _function(problem)

    def loss(values: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return negative_log_likelihood(function(values, x)[None], y[None], problem.likelihood)

    gradients = vmap(grad(loss), (None, 0, 0))(parameters, problem.x, targets)
    return {name: g.square().sum(0) for name, g in gradients.items()}


@diag_mc.method("torch.func")
def _(problem: Problem) -> Parameters:
    with torch.no_grad():
        targets = draw_targets(problem.model(problem.x), problem.likelihood)
    return _squared_gradients(problem, targets)


@diag_empirical.method("torch.func")
def _(problem: Problem) -> Parameters:
    return _squared_gradients(problem, problem.y)


@predictive_variance.method("torch.func", limit=limits.jacobian)
def _(problem: Problem) -> Tensor:
    function, parameters = _function(problem)

    def variance(sample: Tensor) -> Tensor:
        columns = jacrev(function)(parameters, sample)
        terms = [
            (columns[name].square() * problem.variance[name]).flatten(-p.ndim).sum(-1)
            for name, p in parameters.items()
        ]
        return torch.stack(terms).sum(0)

    return vmap(variance)(problem.x)


@diag_approx.method("squared layers")
@torch.no_grad()
def squared_layers(problem: Problem) -> list[Tensor]:
    """Each layer's squared Jacobian by one call of the library's backward."""
    assert isinstance(problem.model, nn.Sequential)
    inputs = [problem.x]
    for layer in problem.model:
        inputs.append(layer(inputs[-1]))
    output = inputs.pop()
    m = output_diagonal(output, problem.likelihood)
    found: list[Tensor] = []
    for index in reversed(range(len(problem.model))):
        layer, x = problem.model[index], inputs[index]
        if isinstance(layer, nn.Linear):
            found += [m.sum(0), m.T @ x.square()]
            m = m @ layer.weight.square()
        elif isinstance(layer, nn.Conv2d):
            m, weight, bias = _squared_convolution(layer, x, m, index > 0)
            found += [bias, weight]
        elif isinstance(layer, nn.Tanh):
            m = m * (1 - output.square()).square()
        elif isinstance(layer, nn.ReLU):
            m = torch.ops.aten.threshold_backward(m, x, 0)
        elif isinstance(layer, nn.Flatten | nn.Unflatten):
            m = m.view_as(x)
        else:
            m = _copy_backward(layer, x, m)
        output = x
    return found[::-1]


@gradient_and_diag_approx.method("backward, then squared layers")
def _(problem: Problem) -> list[Tensor]:
    return [*forward_and_backward(problem), *squared_layers(problem)]


def _squared_convolution(
    layer: nn.Conv2d, x: Tensor, m: Tensor, needs_input: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.convolution_backward(
        m,
        x.square(),
        layer.weight.square(),
        [layer.out_channels],
        layer.stride,
        layer.padding,
        layer.dilation,
        False,
        [0, 0],
        layer.groups,
        [needs_input, True, True],
    )


@torch.enable_grad()
def _copy_backward(layer: nn.Module, x: Tensor, m: Tensor) -> Tensor:
    """Pooling and upsampling copy entries: their Jacobians are their own squares."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(layer(x), x, m)[0]


def _factors(problem: Problem, columns: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
    """Kronecker factors from hooks, with one backward pass of the batch for each column."""
    layers = factored_layers(problem.model)
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    handles = [
        layer.register_forward_hook(_keeper(name, inputs, outputs))
        for name, layer in layers.items()
    ]
    try:
        output = problem.model(problem.x)
    finally:
        for handle in handles:
            handle.remove()
    b = {name: torch.zeros((), device=output.device) for name in layers}
    todo = columns(output.detach())
    for index, column in enumerate(todo):
        values = [outputs[name] for name in layers]
        more = index + 1 < len(todo)
        for name, s in zip(layers, torch.autograd.grad(output, values, column, more), strict=True):
            rows = positions(layers[name], s, inputs=False).flatten(0, 1)
            b[name] = b[name] + rows.T @ rows
    pairs = []
    for name, layer in layers.items():
        rows = positions(layer, inputs[name], inputs=True).flatten(0, 1)
        pairs.append((rows.T @ rows / rows.shape[0], b[name]))
    return normalised(pairs)


def _keeper(
    name: str, inputs: dict[str, Tensor], outputs: dict[str, Tensor]
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def hook(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        inputs[name], outputs[name] = given[0].detach(), output

    return hook


@kfac.method("hooks, unfold")
def _(problem: Problem) -> list[Tensor]:
    def sampled(output: Tensor) -> list[Tensor]:
        y = draw_targets(output, problem.likelihood)
        if problem.likelihood == "categorical":
            return [output.softmax(1) - F.one_hot(y, output.shape[1])]
        return [output - y]

    return _factors(problem, sampled)


@kflr.method("hooks, unfold", limit=limits.passes)
def _(problem: Problem) -> list[Tensor]:
    def exact(output: Tensor) -> list[Tensor]:
        factors = [hessian_factor(value, problem.likelihood) for value in output]
        return [torch.stack(column) for column in zip(*factors, strict=True)]

    return _factors(problem, exact)
