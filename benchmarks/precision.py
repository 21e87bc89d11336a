"""Curvature of models in half precision and under autocast, against the same values in float64.

python -m benchmarks.precision --out docs/measured/precision.md
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import lapkernels as lk
from benchmarks.architectures import Transformer, three_conv_three_dense
from benchmarks.document import table, write
from benchmarks.profile import least
from lapkernels.ops.base.precision import wide

HEAD = ["model", "numbers", "quantity", "largest error", "output's error"]
HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class Adapted(nn.Module):
    """A linear layer of half precision, frozen, and what two float32 matrices of low rank add."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.randn(base.out_features, rank) / rank**0.5)

    def forward(self, x: Tensor) -> Tensor:
        added = x.to(self.down.dtype) @ self.down.T @ self.up.T
        return self.base(x) + added.to(x.dtype)


def with_adapters(model: nn.Module) -> nn.Module:
    """A frozen model with adapters at its wide linear layers."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child.out_features >= 64:
                setattr(module, name, Adapted(child))
    return model


def cnn() -> tuple[nn.Module, Tensor]:
    """3c3d and a batch of images."""
    return three_conv_three_dense(), torch.randn(16, 3, 32, 32)


def transformer() -> tuple[nn.Module, Tensor]:
    """Three layers of width 64 and a batch of sequences of 32 tokens."""
    return Transformer(100, 64, 4, 3, 10), torch.randint(100, (8, 32))


MODELS = {"CNN": cnn, "transformer": transformer}


@dataclass(frozen=True)
class Problem:
    """A model and inputs as given, and both in float64 with the same values."""

    model: nn.Module
    x: Tensor
    exact: nn.Module
    exact_x: Tensor
    around: Callable[[], AbstractContextManager[object]] = nullcontext


def problems(name: str) -> dict[str, Problem]:
    """A model in float32, in half precision, with float32 adapters, and under autocast."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model.eval()

    def of(
        model: nn.Module,
        x: Tensor,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Problem:
        exact_x = x.double() if x.is_floating_point() else x
        return Problem(model, x, copy.deepcopy(model).double(), exact_x, around)

    found = {"float32": of(model, x)}
    for kind, dtype in HALF.items():
        rounded = x.to(dtype) if x.is_floating_point() else x
        found[kind] = of(copy.deepcopy(model).to(dtype), rounded)
    found["autocast to bfloat16"] = of(model, x, lambda: torch.autocast("cpu", torch.bfloat16))
    base = copy.deepcopy(model).bfloat16()
    rounded = x.bfloat16() if x.is_floating_point() else x
    found["bfloat16, float32 adapters"] = of(with_adapters(base), rounded)
    return found


def kronecker(model: nn.Module, x: Tensor, likelihood: str = "categorical") -> dict[str, Tensor]:
    """Both factors of each layer."""
    factors = lk.kron(model, x, likelihood, method="exact")
    both = {f"{name} out": one.output for name, one in factors.items()}
    inputs = {f"{name} in": one.input for name, one in factors.items() if one.input is not None}
    return {**both, **inputs}


def predictive(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The outputs' variance under unit variances."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    ones = {name: torch.ones_like(p, dtype=wide(p.dtype)) for name, p in trained.items()}
    return {"": lk.predictive_variance(model, x, ones)}


QUANTITIES: dict[str, Callable[[nn.Module, Tensor], Mapping[str, Tensor]]] = {
    "diag exact": lambda model, x: lk.diag(model, x, "categorical"),
    "diag approx": lambda model, x: lk.diag(model, x, "categorical", "approx"),
    "kron exact": kronecker,
    "predictive": predictive,
}


def error(found: Tensor, wanted: Tensor) -> float:
    """The norm of the difference, relative to that of what is wanted."""
    wanted = wanted.double()
    return float((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))


def rows(name: str, *, timed: bool) -> list[list[str]]:
    """Every quantity of a model, in all kinds of numbers."""
    found: list[list[str]] = []
    usual: dict[str, float] = {}
    for kind, problem in problems(name).items():
        model, x, around = problem.model, problem.x, problem.around
        with torch.no_grad(), around():
            output = model(x)
        off = error(output, problem.exact(problem.exact_x).detach())
        for quantity, function in QUANTITIES.items():
            try:
                wanted = function(problem.exact, problem.exact_x)
            except lk.Refused:
                continue  # Adapters' weights are products, which have no factors.
            with around():
                value = function(model, x)
            largest = max(error(value[key], wanted[key]) for key in wanted)
            row = [name, kind, quantity, f"{largest:.1e}", f"{off:.1e}"]
            if timed:
                with around():
                    took = least(partial(function, model, x), 0.3)
                usual.setdefault(quantity, took)
                row.append(f"{took / usual[quantity]:.2f}")
            found.append(row)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/measured/precision.md"))
    parser.add_argument("--timed", action="store_true", help="times, relative to float32, too")
    arguments = parser.parse_args(argv)
    found = [row for name in MODELS for row in rows(name, timed=arguments.timed)]
    legend = [
        "The largest error of a parameter (of a factor, of the outputs) is the norm of its "
        "difference from the result in float64, with the same values of parameters and inputs, "
        "relative to the norm of that result. The output's error is the same of the model's own "
        "outputs: what rounding in its forward pass does, ties at max pooling and signs at ReLU "
        "included.",
        "",
    ]
    head = [*HEAD, "time / float32"] if arguments.timed else HEAD
    command = "python -m benchmarks.precision"
    write(arguments.out, "Half precision", command, [*legend, *table(head, found)])


if __name__ == "__main__":
    main()
