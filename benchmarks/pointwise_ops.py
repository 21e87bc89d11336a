"""The pointwise ops: on one tensor of an image's size, or on a network's whole parameter list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.registry import Family, random, register
from lapkernels import ops

TOLERANCE = 1e-5
PRIOR = 0.5
SEED = 7


@dataclass(frozen=True)
class ImageSize:
    """A batch of feature maps and the activation that made them."""

    activation: str
    inputs: int
    resolution: int
    samples: int = 4

    def __str__(self) -> str:
        return f"{self.activation}-c{self.inputs}-r{self.resolution}"


@dataclass(frozen=True)
class ListSize:
    """A parameter list, by the number of entries of each tensor."""

    network: str
    entries: tuple[int, ...]

    def __str__(self) -> str:
        return self.network


IMAGES = [
    ImageSize(activation, 16, resolution)
    for activation in ("relu", "tanh")
    for resolution in (32, 64, 128, 256)
]
LISTS = [
    ListSize("3c3d", (4800, 64, 55296, 96, 110592, 128, 589824, 512, 131072, 256, 2560, 10)),
    ListSize("many-small", (64, 2304) * 100),
    ListSize("one-large", (1 << 24,)),
]
FEW = ListSize("few", (100, 3))


def _make_image(size: ImageSize, device: torch.device) -> tuple[Any, ...]:
    shape = (size.samples, size.inputs, size.resolution, size.resolution)
    m, z = random(0, shape, shape, device=device)
    return m.abs(), z, size.activation


def _derivative_oracle(m: Tensor, z: Tensor, activation: str) -> Tensor:
    z = z.double().requires_grad_()
    (slope,) = torch.autograd.grad(getattr(torch, activation)(z).sum(), z)
    return m.double() * slope.square()


squared_derivative = register(
    Family(
        "squared_derivative",
        IMAGES,
        ImageSize("tanh", 2, 8),
        _make_image,
        _derivative_oracle,
        TOLERANCE,
    )
)


@squared_derivative.method("lapkernels", "ours")
def _(m: Tensor, z: Tensor, activation: str) -> Tensor:
    return ops.squared_derivative(m, z, activation)


@squared_derivative.method("formula")
def _(m: Tensor, z: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return m * (z > 0)
    return m * (1 - z.tanh() ** 2) ** 2


@squared_derivative.method("in place")
def _(m: Tensor, z: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return torch.ops.aten.threshold_backward(m, z, 0)
    return z.tanh().square_().neg_().add_(1).square_().mul_(m)


def _make_lists(size: ListSize, device: torch.device) -> tuple[Any, ...]:
    shapes = [(entries,) for entries in size.entries]
    first, second = random(0, *shapes, device=device), random(1, *shapes, device=device)
    return first, [0.1 * t for t in second]


def _make_precisions(size: ListSize, device: torch.device) -> tuple[Any, ...]:
    first, second = _make_lists(size, device)
    return [t.abs() + 1 for t in first], [t.abs() + 1 for t in second]


def _update_oracle(precision: list[Tensor], diagonal: list[Tensor]) -> list[Tensor]:
    return [0.9 * h.double() + 2 * d.double() for h, d in zip(precision, diagonal, strict=True)]


precision_update = register(
    Family(
        "precision_update", LISTS, FEW, _make_precisions, _update_oracle, TOLERANCE, in_place=True
    )
)


@precision_update.method("lapkernels", "ours")
def _(precision: list[Tensor], diagonal: list[Tensor]) -> list[Tensor]:
    ops.precision_update(precision, diagonal, 0.9, 2.0)
    return precision


@precision_update.method("loop")
def _(precision: list[Tensor], diagonal: list[Tensor]) -> list[Tensor]:
    for h, d in zip(precision, diagonal, strict=True):
        h.mul_(0.9).add_(d, alpha=2.0)
    return precision


@precision_update.method("foreach")
def _(precision: list[Tensor], diagonal: list[Tensor]) -> list[Tensor]:
    torch._foreach_mul_(precision, 0.9)
    torch._foreach_add_(precision, diagonal, alpha=2.0)
    return precision


def _make_samples(size: ListSize, device: torch.device) -> tuple[Any, ...]:
    mean, precision = _make_lists(size, device)
    return mean, [t.abs() for t in precision]


def _noise(mean: Sequence[Tensor]) -> list[Tensor]:
    generator = torch.Generator(mean[0].device).manual_seed(SEED)
    return [torch.randn(mu.shape, device=mu.device, generator=generator) for mu in mean]


def _sample_oracle(mean: list[Tensor], precision: list[Tensor]) -> list[Tensor]:
    return [
        mu.double() + e.double() / (h.double() + PRIOR).sqrt()
        for mu, h, e in zip(mean, precision, _noise(mean), strict=True)
    ]


sample_from_precision = register(
    Family("sample_from_precision", LISTS, FEW, _make_samples, _sample_oracle, TOLERANCE)
)


@sample_from_precision.method("lapkernels", "ours")
def _(mean: list[Tensor], precision: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator(mean[0].device).manual_seed(SEED)
    return ops.sample_from_precision(mean, precision, prior_precision=PRIOR, generator=generator)


@sample_from_precision.method("loop")
def _(mean: list[Tensor], precision: list[Tensor]) -> list[Tensor]:
    return [
        torch.addcmul(mu, e, (h + PRIOR).rsqrt_())
        for mu, h, e in zip(mean, precision, _noise(mean), strict=True)
    ]


@sample_from_precision.method("foreach")
def _(mean: list[Tensor], precision: list[Tensor]) -> list[Tensor]:
    deviation = torch._foreach_add(precision, PRIOR)
    torch._foreach_rsqrt_(deviation)
    return list(torch._foreach_addcmul(mean, _noise(mean), deviation))


def _kl_oracle(mean: list[Tensor], log_sigma: list[Tensor]) -> Tensor:
    mu = torch.cat(mean).double()
    posterior = torch.distributions.Normal(mu, torch.cat(log_sigma).double().exp())
    prior = torch.distributions.Normal(torch.zeros_like(mu), PRIOR)
    return torch.distributions.kl_divergence(posterior, prior).sum()


gaussian_kl = register(Family("gaussian_kl", LISTS, FEW, _make_lists, _kl_oracle, TOLERANCE))


@gaussian_kl.method("lapkernels", "ours")
def _(mean: list[Tensor], log_sigma: list[Tensor]) -> Tensor:
    return ops.gaussian_kl(mean, log_sigma, PRIOR)


@gaussian_kl.method("loop")
def _(mean: list[Tensor], log_sigma: list[Tensor]) -> Tensor:
    constant = 2 * math.log(PRIOR) - 1
    terms = [
        (((2 * ls).exp_() + mu.square()).div_(PRIOR**2) - 2 * ls).sum() + constant * mu.numel()
        for mu, ls in zip(mean, log_sigma, strict=True)
    ]
    return 0.5 * torch.stack(terms).sum()


@gaussian_kl.method("one concatenated vector")
def _(mean: list[Tensor], log_sigma: list[Tensor]) -> Tensor:
    mu, ls = torch.cat(mean), torch.cat(log_sigma)
    squares = (ls * 2).exp_().sum() + mu @ mu
    count = mu.numel()
    return 0.5 * (squares / PRIOR**2 - 2 * ls.sum() + count * (2 * math.log(PRIOR) - 1))


def _gradient_oracle(gradient: list[Tensor], log_sigma: list[Tensor]) -> Tensor:
    g, ls = torch.cat(gradient).double(), torch.cat(log_sigma).double()
    return ((2 * ls).exp() * g.square()).sum()


squared_gradient_sum = register(
    Family("squared_gradient_sum", LISTS, FEW, _make_lists, _gradient_oracle, TOLERANCE)
)


@squared_gradient_sum.method("lapkernels", "ours")
def _(gradient: list[Tensor], log_sigma: list[Tensor]) -> Tensor:
    return ops.squared_gradient_sum(gradient, log_sigma)


@squared_gradient_sum.method("loop")
def _(gradient: list[Tensor], log_sigma: list[Tensor]) -> Tensor:
    terms = [ls.exp().mul_(g).square_().sum() for g, ls in zip(gradient, log_sigma, strict=True)]
    return torch.stack(terms).sum()


@squared_gradient_sum.method("one concatenated vector")
def _(gradient: list[Tensor], log_sigma: list[Tensor]) -> Tensor:
    scaled = torch.cat(log_sigma).exp_().mul_(torch.cat(gradient))
    return scaled @ scaled
