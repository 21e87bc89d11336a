"""Whole networks: a quantity of the curvature, in units of one forward and backward pass."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.registry import Family, random, register


@dataclass(frozen=True)
class NetworkSize:
    """A classifier of images and its batch."""

    network: str
    resolution: int
    samples: int
    classes: int

    def __str__(self) -> str:
        return f"{self.network}-r{self.resolution}-n{self.samples}"


def three_conv_three_dense(classes: int) -> nn.Sequential:
    """3c3d for 32x32 images with three channels."""
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)),
        *(nn.Conv2d(64, 96, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)),
        *(nn.Conv2d(96, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)),
        nn.Flatten(),
        *(nn.Linear(1152, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU()),
        nn.Linear(256, classes),
    )


def tiny(classes: int) -> nn.Sequential:
    """The same kinds of layer, for 8x8 images."""
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)),
        *(nn.Flatten(), nn.Linear(36, classes)),
    )


NETWORKS = {"3c3d": three_conv_three_dense, "tiny": tiny}


def _make(size: NetworkSize, device: torch.device) -> tuple[Any, ...]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = NETWORKS[size.network](size.classes).to(device).eval()
    shape = (size.samples, 3, size.resolution, size.resolution)
    (x,) = random(1, shape, device=device)
    return model, x, torch.arange(size.samples, device=device) % size.classes


def softmax_factor(logits: Tensor) -> Tensor:
    """Columns [V, C] with H = sum_v s_v s_v^T for one sample's cross-entropy at ``logits`` [C]."""
    p = logits.softmax(0)
    return p.sqrt().unsqueeze(1) * (torch.eye(len(p), dtype=p.dtype, device=p.device) - p)


def _diagonal_oracle(model: nn.Sequential, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """One backward pass for each sample and column, in float64."""
    model = copy.deepcopy(model).double()
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for sample in x.double():
        logits = model(sample.unsqueeze(0))[0]
        for column in softmax_factor(logits.detach()):
            grads = torch.autograd.grad(logits, list(parameters.values()), column, True)
            for name, grad in zip(total, grads, strict=True):
                total[name] += grad.square()
    return total


diag_exact = register(
    Family(
        "diag_exact",
        [NetworkSize("3c3d", 32, 16, 10)],
        NetworkSize("tiny", 8, 2, 3),
        _make,
        _diagonal_oracle,
        1e-4,
    )
)


@diag_exact.method("forward and backward", "unit")
def _(model: nn.Sequential, x: Tensor, y: Tensor) -> list[Tensor]:
    loss = F.cross_entropy(model(x), y, reduction="sum")
    return list(torch.autograd.grad(loss, list(model.parameters())))


@diag_exact.method("torch.func")
def _(model: nn.Sequential, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def squares(sample: Tensor) -> dict[str, Tensor]:
        def logits(values: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(model, values, (sample.unsqueeze(0),))[0]

        value, pull, *_ = torch.func.vjp(logits, parameters)
        (columns,) = torch.func.vmap(pull)(softmax_factor(value))
        return {name: g.square().sum(0) for name, g in columns.items()}

    return {name: d.sum(0) for name, d in torch.func.vmap(squares)(x).items()}


def _extend(model: nn.Sequential, x: Tensor, y: Tensor) -> tuple[Any, ...]:
    from backpack import extend  # pyright: ignore[reportMissingImports]

    return extend(copy.deepcopy(model)), extend(nn.CrossEntropyLoss(reduction="sum")), x, y


@diag_exact.method("BackPACK", "peer", setup=_extend, requires="backpack")
def _(model: nn.Sequential, loss: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    from backpack import backpack, extensions  # pyright: ignore[reportMissingImports]

    model.zero_grad()
    with backpack(extensions.DiagGGNExact()):
        loss(model(x), y).backward()
    return {name: vars(p)["diag_ggn_exact"] for name, p in model.named_parameters()}
