"""How weights are used: shared by several layers, computed from others, or without a module."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.curvature.zoo.network import Net, Network, grouped, owning, parameter


def _tied_embedding() -> nn.Module:
    table, head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    head.weight = table.weight
    return Net(
        lambda net, x: net.head(torch.tanh(net.body(net.table(x)))),
        table=table,
        body=nn.Linear(4, 4),
        head=head,
    )


def _tied_autoencoder(net: Any, x: Tensor) -> Tensor:
    return F.linear(torch.tanh(net.encoder(x)), net.encoder.weight.T, net.shift)


def _tied_convs() -> nn.Module:
    first, second = nn.Conv1d(2, 2, 3, padding=1), nn.Conv1d(2, 2, 3, padding=2, dilation=2)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Flatten(), nn.Linear(8, 2))


def _tied_bias() -> nn.Module:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.bias = first.bias
    return nn.Sequential(first, nn.Tanh(), second)


TIED = grouped("tied", [
    owning("module-twice", lambda net, x: net.head(torch.tanh(net.twice(torch.tanh(net.twice(x))))),
        {"twice": (3, 3), "head": (3, 2)}, (3,)),
    Network("module-twice-in-sequential",
        lambda: nn.Sequential(layer := nn.Linear(3, 3), nn.Tanh(), layer, nn.Tanh()), (3,)),
    owning("conv-twice-at-two-sizes",
        lambda net, x: torch.cat(
            [net.conv(x).mean(2), torch.tanh(net.conv(F.avg_pool1d(x, 2))).mean(2)], 1),
        {"conv": lambda: nn.Conv1d(2, 3, 3)}, (2, 8)),
    owning("siamese", lambda net, x, z: (net.body(x) - net.body(z)).square() @ net.weight,
        {"body": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh()), "weight": [4, 2]},
        lambda n: (torch.randn(n, 3), torch.randn(n, 3))),
    Network("activation-twice",
        lambda: nn.Sequential(nn.Linear(3, 4), act := nn.PReLU(), nn.Linear(4, 4), act,
            nn.Linear(4, 2)), (3,)),
    Network("norm-twice",
        lambda: nn.Sequential(nn.Linear(3, 4), norm := nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 4),
            norm), (3,)),
    Network("embedding-tied-to-linear", _tied_embedding, lambda n: torch.randint(0, 5, (n, 3)),
        "sequence"),
    owning("autoencoder-tied", _tied_autoencoder, {"encoder": (4, 2), "shift": [4]}, (4,)),
    Network("convs-tied", _tied_convs, (2, 4)),
    Network("bias-tied", _tied_bias, (3,)),
    owning("weight-by-module-and-by-hand",
        lambda net, x: net.layer(x) + torch.tanh(x) @ net.layer.weight.T, {"layer": (3, 2)}, (3,)),
])  # fmt: skip


class _Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 3)
        self.base.requires_grad_(False)
        self.a, self.b = parameter(2, 4), parameter(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(x, self.b @ self.a)


class _Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


def _symmetric() -> nn.Module:
    layer = nn.Linear(3, 3)
    nn.utils.parametrize.register_parametrization(layer, "weight", _Symmetric())
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 2))


COMPUTED = grouped("computed-weight", [
    Network("weight-norm",
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(),
            nn.Linear(4, 2)), (3,)),
    Network("weight-norm-conv",
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Conv1d(2, 3, 2)), nn.Flatten(),
            nn.Linear(9, 2)), (2, 4)),
    Network("spectral-norm",
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Tanh(),
            nn.Linear(4, 2)), (3,)),
    Network("orthogonal",
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 3), orthogonal_map="cayley"),
            nn.Tanh(), nn.Linear(3, 2)), (3,)),
    Network("symmetric-weight", _symmetric, (3,)),
    Network("low-rank-adapter", _Lora, (4,)),
    owning("standardised-weight",
        lambda net, x: F.conv2d(x,
            (net.weight - net.weight.mean((1, 2, 3), keepdim=True))
            / net.weight.std((1, 2, 3), keepdim=True)), {"weight": [2, 2, 2, 2]}, (2, 3, 3),
        "image"),
    owning("masked-weight", lambda net, x: F.linear(x, net.layer.weight * net.mask, net.layer.bias),
        {"layer": (3, 3), "mask": lambda: torch.ones(3, 3).tril()}, (3,)),
    # No sample dimension passes the hyper network: its output serves all samples.
    Network("weight-from-a-network",
        lambda: Net(lambda net, x: F.linear(x, net.hyper(net.code).view(2, 3)),
            hyper=nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 6)), code=parameter(2)),
        (3,)),
    owning("weight-from-each-sample",
        lambda net, x: torch.einsum("noi,ni->no", net.hyper(x).view(-1, 2, 3), x),
        {"hyper": (3, 6)}, (3,)),
])  # fmt: skip

BARE = grouped("bare-parameter", [
    owning("functional-calls",
        lambda net, x: F.linear(torch.tanh(F.conv1d(x, net.w, net.b)).flatten(1), net.v),
        {"w": [2, 2, 2], "b": [2], "v": [3, 6]}, (2, 4)),
    owning("functional-transposed", lambda net, x: F.conv_transpose2d(x, net.w, net.b, stride=2),
        {"w": [2, 1, 2, 2], "b": [1]}, (2, 2, 2), "image"),
    owning("matrix-product", lambda net, x: torch.tanh(x @ net.w) @ net.v,
        {"w": [3, 4], "v": [4, 2]}, (3,)),
    owning("matrix-product-from-the-left", lambda net, x: net.w @ torch.tanh(x @ net.v),
        {"w": [2, 4], "v": [3, 2]}, (4, 3), "sequence"),
    owning("addmm", lambda net, x: torch.addmm(net.b, torch.tanh(x), net.w),
        {"w": [3, 4], "b": [4]}, (3,)),
    owning("einsum-weight", lambda net, x: torch.einsum("nti,hio,nto->nh", x, net.w, torch.tanh(x)),
        {"w": [2, 3, 3]}, (4, 3)),
    owning("bare-bias", lambda net, x: net.head(torch.tanh(net.stem(x) + net.shift)),
        {"stem": lambda: nn.Linear(3, 4, bias=False), "shift": [4], "head": (4, 2)}, (3,)),
    owning("bare-bias-image", lambda net, x: net.conv(torch.tanh(x + net.shift)),
        {"shift": [2, 1, 1], "conv": lambda: nn.Conv2d(2, 2, 2)}, (2, 3, 3), "image"),
    owning("learned-scale", lambda net, x: net.scale * net.layer(x),
        {"scale": lambda: nn.Parameter(torch.tensor(1.5)), "layer": (3, 2)}, (3,)),
    owning("layer-scale", lambda net, x: (h := net.stem(x)) + net.scale * torch.tanh(net.body(h)),
        {"stem": (3, 4), "scale": [4], "body": (4, 4)}, (3,)),
    owning("scalar-temperature", lambda net, x: net.layer(x) / net.temperature.exp(),
        {"layer": (3, 2), "temperature": lambda: nn.Parameter(torch.zeros(1))}, (3,)),
    owning("learned-exponent", lambda net, x: net.layer(x).square().add(0.5).pow(net.power),
        {"layer": (3, 2), "power": [2]}, (3,)),
    owning("cosine-classifier",
        lambda net, x: 3.0
        * F.linear(F.normalize(torch.tanh(net.stem(x)), dim=1), F.normalize(net.w, dim=1)),
        {"stem": (3, 4), "w": [3, 4]}, (3,)),
    owning("prototypes", lambda net, x: -torch.cdist(torch.tanh(net.stem(x)), net.centres).square(),
        {"stem": (3, 2), "centres": [3, 2]}, (3,)),
    owning("only-bias", lambda net, x: x + net.shift, {"shift": [3]}, (3,)),
    owning("parameter-list", lambda net, x: torch.tanh(x @ net.weights[0]) @ net.weights[1],
        {"weights": lambda: nn.ParameterList([parameter(3, 4), parameter(4, 2)])}, (3,)),
    owning("parameter-not-used", lambda net, x: net.layer(x), {"layer": (3, 2), "idle": [2, 2]},
        (3,)),
    owning("output-half-constant", lambda net, x: torch.cat([net.layer(x), x], 1),
        {"layer": (3, 2)}, (3,)),
    owning("expanded-parameter",
        lambda net, x: net.head(torch.cat([net.token.expand(len(x), 1, 3), x], 1).flatten(1)),
        {"token": [1, 1, 3], "head": (9, 2)}, (2, 3)),
])  # fmt: skip

NETWORKS = [*TIED, *COMPUTED, *BARE]
