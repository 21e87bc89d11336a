"""Whole-model quantities in float64, by the plainest means: what methods are compared with."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import grad

from benchmarks.networks import Likelihood, Problem


def negative_log_likelihood(output: Tensor, y: Tensor, likelihood: Likelihood) -> Tensor:
    """Summed over samples; Gaussian with unit noise and without its constant."""
    if likelihood == "categorical":
        return F.cross_entropy(output, y, reduction="sum")
    return 0.5 * (output - y).square().sum()


def hessian_factor(output: Tensor, likelihood: Likelihood) -> Tensor:
    """Columns [V, *out] with H = sum_v s_v s_v^T for the output [*out] of one sample."""
    if likelihood == "gaussian":
        return _unit_columns(output)
    p = output.softmax(0)
    return p.sqrt().unsqueeze(1) * (torch.eye(len(p), dtype=p.dtype, device=p.device) - p)


def diagonal(problem: Problem) -> dict[str, Tensor]:
    """Exact diagonal of the GGN: one backward pass for each sample and column."""
    model = copy.deepcopy(problem.model).double()
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for output in _outputs(model, problem.x):
        for column in hessian_factor(output.detach(), problem.likelihood):
            for name, g in _gradients(model, output, column).items():
                total[name] += g.square()
    return total


def empirical_diagonal(problem: Problem) -> dict[str, Tensor]:
    """Sum over samples of the squared gradient of the loss at the given targets."""
    model = copy.deepcopy(problem.model).double()
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for output, y in zip(_outputs(model, problem.x), problem.y, strict=True):
        target = y if problem.likelihood == "categorical" else y.double()
        loss = negative_log_likelihood(output[None], target[None], problem.likelihood)
        for name, g in _gradients(model, loss, torch.ones_like(loss)).items():
            total[name] += g.square()
    return total


def predictive_variance(problem: Problem) -> Tensor:
    """Diagonal of J diag(variance) J^T, [N, *out]."""
    model = copy.deepcopy(problem.model).double()
    variance = {name: v.double() for name, v in problem.variance.items()}
    rows = []
    for output in _outputs(model, problem.x):
        values = [
            sum(
                (variance[name] * g.square()).sum()
                for name, g in _gradients(model, output, column).items()
            )
            for column in _unit_columns(output)
        ]
        rows.append(torch.stack([torch.as_tensor(v) for v in values]).view_as(output))
    return torch.stack(rows)


def approximate_diagonal(problem: Problem) -> dict[str, Tensor]:
    """The diagonal of M, back-propagated through a sequence of layers.

    A layer that is linear in its input and its parameters has, on squares, the squared Jacobian:
    its own gradient at squared input and parameters is the whole rule.
    """
    assert isinstance(problem.model, nn.Sequential)
    model = copy.deepcopy(problem.model).double()
    inputs = [problem.x.double()]
    with torch.no_grad():
        for layer in model:
            inputs.append(layer(inputs[-1]))
    m = output_diagonal(inputs.pop(), problem.likelihood)
    total: dict[str, Tensor] = {}
    for (prefix, layer), x in reversed(list(zip(model.named_children(), inputs, strict=True))):
        found, m = _squared_layer(layer, x, m)
        total |= {f"{prefix}.{name}": value for name, value in found.items()}
    return {name: total[name] for name, _ in model.named_parameters()}


def mixed_diagonal(problem: Problem, threshold: int) -> dict[str, Tensor]:
    """M in full at values of up to ``threshold`` features, its diagonal elsewhere; layers in a row.

    Dense Jacobians of single layers and samples: for tiny networks.
    """
    model = cast(nn.Sequential, copy.deepcopy(problem.model).double())
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for sample in problem.x.double().split(1):
        values = [sample]
        for layer in model:
            values.append(layer(values[-1]).detach())
        m = torch.eye(values[-1].numel(), dtype=torch.float64)
        for index in reversed(range(len(model))):
            layer, value = model[index], values[index]
            own = {name: p.detach() for name, p in layer.named_parameters()}

            def run(weights: dict[str, Tensor], x: Tensor, layer: nn.Module = layer) -> Tensor:
                return torch.func.functional_call(layer, weights, (x,)).flatten()

            of_weights, of_input = torch.func.jacrev(run, argnums=(0, 1))(own, value)
            for name, j in of_weights.items():
                flat = j.flatten(1)
                total[f"{index}.{name}"] += (flat * (m @ flat)).sum(0).view_as(own[name])
            j = of_input.flatten(1)
            m = j.T @ m @ j
            if value.numel() > threshold:
                m = m.diagonal().diag()
    return total


def blocks(problem: Problem) -> dict[str, Tensor]:
    """JᵀJ of each layer's parameters, [P, P] by its name; Gaussian, for tiny networks."""
    model = copy.deepcopy(problem.model).double()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def run(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, weights, (problem.x.double(),)).flatten()

    grouped: dict[str, list[Tensor]] = {}
    for name, j in torch.func.jacrev(run)(parameters).items():  # pyright: ignore
        grouped.setdefault(name.rpartition(".")[0], []).append(j.flatten(1))
    joined = {layer: torch.cat(parts, 1) for layer, parts in grouped.items()}
    return {layer: j.T @ j for layer, j in joined.items()}


def gradient_and_approximate_diagonal(problem: Problem) -> list[Tensor]:
    """The gradient of the loss, and the diagonal above."""
    model = copy.deepcopy(problem.model).double()
    y = problem.y.double() if problem.y.is_floating_point() else problem.y
    loss = negative_log_likelihood(model(problem.x.double()), y, problem.likelihood)
    return [*grad(loss, list(model.parameters())), *approximate_diagonal(problem).values()]


def output_diagonal(output: Tensor, likelihood: Likelihood) -> Tensor:
    """Diagonal of the loss's Hessian in the output, for every sample."""
    if likelihood == "gaussian":
        return torch.ones_like(output)
    p = output.softmax(1)
    return p * (1 - p)


def kronecker_factors(problem: Problem) -> list[Tensor]:
    """KFAC-expand with exact columns, of linear and convolutional layers: see ``normalised``."""
    return normalised(kronecker_pairs(problem, sum_positions=False))


def kronecker_factors_of_sums(problem: Problem) -> list[Tensor]:
    """The same, but with columns summed over positions before their outer product."""
    return normalised(kronecker_pairs(problem, sum_positions=True))


def normalised(pairs: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """A / tr A and B tr A of each layer: as B x A, but free of how packages share the scale."""
    return [factor for a, b in pairs for factor in (a / a.trace(), b * a.trace())]


def factored_layers(model: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """The layers that every package's Kronecker factors cover."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    }


def positions(layer: nn.Linear | nn.Conv2d, value: Tensor, *, inputs: bool) -> Tensor:
    """Inputs, unfolded, or outputs of a layer as [N, T, features]."""
    if isinstance(layer, nn.Linear):
        return value.flatten(1, -2) if value.ndim > 2 else value.unsqueeze(1)
    if inputs:
        value = F.unfold(value, layer.kernel_size, layer.dilation, _padding(layer), layer.stride)
    return value.flatten(2).transpose(1, 2)


def _padding(layer: nn.Conv2d) -> tuple[int, ...]:
    assert not isinstance(layer.padding, str)
    return layer.padding


def kronecker_pairs(problem: Problem, *, sum_positions: bool) -> list[tuple[Tensor, Tensor]]:
    """A, averaged over samples and positions, and B, summed over samples, of each layer."""
    model = copy.deepcopy(problem.model).double()
    layers = factored_layers(model)
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str) -> None:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[name] = (inputs[0].detach(), output)

        layers[name].register_forward_hook(hook)

    for name in layers:
        keep(name)
    x = problem.x.double() if problem.x.is_floating_point() else problem.x
    output = model(x)
    factors = [hessian_factor(sample, problem.likelihood) for sample in output.detach()]
    b = {name: torch.zeros(()) for name in layers}
    # Samples do not meet in eval mode: a column of all of them goes back at once.
    for columns in zip(*factors, strict=True):
        outputs = [seen[name][1] for name in layers]
        columns_back = grad(output, outputs, torch.stack(columns), retain_graph=True)
        for (name, layer), column in zip(layers.items(), columns_back, strict=True):
            s = positions(layer, column, inputs=False)
            s = s.sum(1) if sum_positions else s.flatten(0, 1)
            b[name] = b[name] + s.T @ s
    pairs = []
    for name, layer in layers.items():
        rows = positions(layer, seen[name][0], inputs=True)
        count = rows.shape[0] if sum_positions else rows.shape[0] * rows.shape[1]
        rows = rows.flatten(0, 1)
        pairs.append((rows.T @ rows / count, b[name]))
    return pairs


def kronecker_predictive_variance(problem: Problem, prior: float) -> Tensor:
    """[N, C] under (B ⊗ A + prior)⁻¹ for weights and (B + prior)⁻¹ for biases."""
    model = copy.deepcopy(problem.model).double()
    pairs = kronecker_pairs(problem, sum_positions=False)
    bases = [(torch.linalg.eigh(a), torch.linalg.eigh(b)) for a, b in pairs]
    rows = []
    for output in _outputs(model, problem.x):
        for column in _unit_columns(output):
            g = _gradients(model, output, column)
            total = torch.zeros((), dtype=torch.float64)
            for name, (a, b) in zip(factored_layers(model), bases, strict=True):
                rotated = b[1].T @ g[f"{name}.weight"].flatten(1) @ a[1]
                total += (rotated.square() / (torch.outer(b[0], a[0]) + prior)).sum()
                if f"{name}.bias" in g:
                    total += ((g[f"{name}.bias"] @ b[1]).square() / (b[0] + prior)).sum()
            rows.append(total)
    return torch.stack(rows).reshape(len(problem.x), -1)


def _outputs(model: nn.Module, x: Tensor) -> Iterator[Tensor]:
    """Output of one sample after the other, with its graph."""
    for sample in x.double() if x.is_floating_point() else x:
        yield model(sample.unsqueeze(0))[0]


def _gradients(model: nn.Module, output: Tensor, column: Tensor) -> dict[str, Tensor]:
    names, values = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, grad(output, values, column, retain_graph=True), strict=True))


def _unit_columns(output: Tensor) -> Tensor:
    """The outputs' unit vectors, [V, *out]."""
    eye = torch.eye(output.numel(), dtype=output.dtype, device=output.device)
    return eye.view(-1, *output.shape)


def _squared_layer(layer: nn.Module, x: Tensor, m: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Diagonal of a layer's parameters, and ``m`` at its input."""
    if isinstance(layer, nn.Linear | nn.Conv2d):
        square = {name: p.detach().square() for name, p in layer.named_parameters()}
        arguments = [t.requires_grad_() for t in (*square.values(), x.square())]
        output = torch.func.functional_call(layer, square, (arguments[-1],))
        *found, back = grad(output, arguments, m)
        return dict(zip(square, found, strict=True)), back
    x = x.detach().requires_grad_()
    output = layer(x)
    if isinstance(layer, nn.ReLU | nn.Tanh):
        (derivative,) = grad(output, x, torch.ones_like(output))
        return {}, m * derivative.square()
    # Pooling, upsampling and reshaping copy entries: their Jacobians are their own squares.
    assert isinstance(layer, nn.MaxPool2d | nn.Upsample | nn.Flatten | nn.Unflatten)
    return {}, grad(output, x, m)[0]
