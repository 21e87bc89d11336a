"""Outputs of many shapes, coinciding sizes, frozen parameters, memory formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.curvature.zoo.network import Net, Network, grouped, owning


def _decoder() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 8),
        nn.Tanh(),
        nn.Unflatten(1, (2, 2, 2)),
        nn.ConvTranspose2d(2, 1, 2, stride=2),
    )


def _two(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(net.stem(x))
    return net.mean(h), net.scale(h)


def _two_named(net: Any, x: Tensor) -> dict[str, Tensor]:
    mean, scale = _two(net, x)
    return {"mean": mean, "scale": scale}


def _heads(function: Callable[..., Any]) -> Callable[[], nn.Module]:
    return lambda: Net(function, stem=nn.Linear(3, 4), mean=nn.Linear(4, 2), scale=nn.Linear(4, 3))


IMAGES = grouped("image-output", [
    Network("image-to-image",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Softplus(),
            nn.Conv2d(3, 2, 3, padding=1)), (2, 4, 4), "image", samples=2),
    Network("decoder", _decoder, (2,), "image"),
    Network("autoencoder",
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(),
            nn.Linear(8, 2), _decoder()), (1, 4, 4), "image"),
    Network("one-pixel", lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Conv2d(3, 2, 2)),
        (1, 3, 3), "image"),
])  # fmt: skip

SEVERAL = grouped("several-outputs", [
    Network("first-of-tuple", _heads(_two), (3,), output=lambda out: out[0]),
    Network("second-of-tuple", _heads(_two), (3,), output=lambda out: out[1]),
    Network("named-output", _heads(_two_named), (3,), output=lambda out: out["scale"]),
    Network("joined-outputs", _heads(_two), (3,), output=lambda out: torch.cat(out, 1)),
    Network("part-of-output", lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)),
        (3,), output=lambda out: out[:, 1:4]),
])  # fmt: skip


def _conv_and_linear() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(9, 3))


SIZES = grouped("sizes", [
    Network("all-sizes-equal", _conv_and_linear, (3, 3)),
    Network("all-sizes-equal-linear",
        lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 3)), (3, 3),
        "sequence"),
    Network("all-sizes-equal-image",
        lambda: nn.Sequential(nn.Conv2d(3, 3, 2), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 2)), (3, 3, 3),
        "image"),
    Network("one-sample", _conv_and_linear, (3, 3), samples=1),
    Network("one-sample-one-feature",
        lambda: nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)), (1,), samples=1),
    Network("one-sample-batch-norm",
        lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), (2,),
        samples=1),
    Network("more-samples-than-features", lambda: nn.Linear(2, 2), (2,), samples=9),
    Network("one-position", lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        (1, 3), "sequence"),
    # [N]: one number a sample, without a dimension for it.
    Network("no-output-dimension",
        lambda: Net(lambda net, x: torch.tanh(net.layer(x)).squeeze(1), layer=nn.Linear(3, 1)),
        (3,)),
])  # fmt: skip


def _frozen(*names: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = nn.Sequential(
            nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)
        )
        for name, p in model.named_parameters():
            p.requires_grad_(name not in names)
        return model

    return build


def _channels_last(samples: int) -> Tensor:
    return torch.randn(samples, 2, 4, 4).to(memory_format=torch.channels_last)


def _not_contiguous(samples: int) -> Tensor:
    return torch.randn(4, 6, samples).permute(2, 1, 0)[:, ::2]


def _with_constant(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.square().mean(1, keepdim=True).sqrt()
    return net.layer(x / scale) + net.shift


STATES = grouped("state", [
    Network("frozen-weight", _frozen("0.weight"), (1, 3, 3)),
    Network("frozen-bias", _frozen("0.bias", "4.bias"), (1, 3, 3)),
    Network("frozen-middle", _frozen("1.weight", "1.bias"), (1, 3, 3)),
    Network("frozen-last-layer", _frozen("4.weight", "4.bias"), (1, 3, 3)),
    Network("frozen-all-but-last", _frozen("0.weight", "0.bias", "1.weight", "1.bias"), (1, 3, 3)),
    Network("channels-last",
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(12, 2)
        ).to(memory_format=torch.channels_last),  # pyright: ignore[reportCallIssue]
        _channels_last),
    Network("input-not-contiguous",
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), _not_contiguous,
        "sequence"),
    owning("parameter-not-contiguous", lambda net, x: torch.tanh(x @ net.w),
        {"w": lambda: nn.Parameter(torch.randn(4, 3).T)}, (3,)),
    owning("no-gradient-region-for-a-constant", _with_constant, {"layer": (3, 2), "shift": [2]},
        (3,)),
    Network("deep-nesting",
        lambda: nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(3, 4)), nn.Tanh()),
            nn.Linear(4, 2)), (3,)),
    Network("saturated", lambda: nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)),
        lambda n: 40.0 * torch.randn(n, 3)),
])  # fmt: skip


NETWORKS = [*IMAGES, *SEVERAL, *SIZES, *STATES]
