"""Networks that are not chains: skips, products, ways that samples take on their own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.curvature.zoo.network import Net, Network, grouped, owning


def _conv(inputs: int, outputs: int, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2)


def _squeeze_excite(net: Any, x: Tensor) -> Tensor:
    x = torch.tanh(net.stem(x))
    scale = torch.sigmoid(net.up(F.silu(net.down(x.mean((2, 3))))))
    return net.head((x * scale[:, :, None, None]).mean((2, 3)))


def _u_net(net: Any, x: Tensor) -> Tensor:
    skip = F.silu(net.down(x))
    low = F.silu(net.middle(F.max_pool2d(skip, 2)))
    return net.up(torch.cat([net.grow(low), skip], 1))


def _dense_block(net: Any, x: Tensor) -> Tensor:
    x = torch.cat([x, torch.tanh(net.first(x))], 1)
    x = torch.cat([x, torch.tanh(net.second(x))], 1)
    return net.head(x)


SKIPS = grouped("skip", [
    owning("residual", lambda net, x: net.head(x + net.second(torch.tanh(net.first(x)))),
        {"first": (3, 4), "second": (4, 3), "head": (3, 2)}, (3,)),
    owning("residual-behind-parameters",
        lambda net, x: net.head((h := net.stem(x)) + torch.tanh(net.body(h))),
        {"stem": (3, 4), "body": (4, 4), "head": (4, 2)}, (3,)),
    owning("residual-in-place",
        lambda net, x: net.head(net.body(torch.tanh(h := net.stem(x))).add_(h)),
        {"stem": (3, 4), "body": (4, 4), "head": (4, 2)}, (3,)),
    owning("residual-difference",
        lambda net, x: net.head(2.0 * (h := net.stem(x)) - torch.tanh(net.body(h)) / 3.0),
        {"stem": (3, 4), "body": (4, 4), "head": (4, 2)}, (3,)),
    owning("residual-conv-batch-norm",
        lambda net, x: net.head(
            F.relu(net.skip(x) + net.norm(net.body(F.relu(net.stem(x))))).mean((2, 3))),
        {"stem": lambda: _conv(2, 3), "body": lambda: _conv(3, 3),
            "norm": lambda: nn.BatchNorm2d(3), "skip": lambda: nn.Conv2d(2, 3, 1), "head": (3, 2)},
        (2, 4, 4)),
    owning("dense-concatenation", _dense_block, {"first": (3, 3), "second": (6, 3), "head": (9, 2)},
        (3,)),
    owning("u-net", _u_net,
        {"down": lambda: _conv(1, 2), "middle": lambda: _conv(2, 3),
            "grow": lambda: nn.ConvTranspose2d(3, 2, 2, stride=2), "up": lambda: _conv(4, 2)},
        (1, 4, 4), "image"),
    owning("sum-of-three-branches",
        lambda net, x: sum(torch.tanh(branch(x)) for branch in net.branches),
        {"branches": lambda: nn.ModuleList([nn.Linear(3, 2) for _ in range(3)])}, (3,)),
    owning("module-dict", lambda net, x: net.parts["b"](torch.tanh(net.parts["a"](x))),
        {"parts": lambda: nn.ModuleDict({"b": nn.Linear(4, 2), "a": nn.Linear(3, 4)})}, (3,)),
])  # fmt: skip

PRODUCTS = grouped("product", [
    owning("gate", lambda net, x: net.head(net.value(x) * torch.sigmoid(net.gate(x))),
        {"value": (3, 4), "gate": (3, 4), "head": (4, 2)}, (3,)),
    owning("gated-mlp",
        lambda net, x: net.down(F.silu(net.gate(h := net.norm(net.stem(x)))) * net.up(h)),
        {"stem": (3, 4), "norm": lambda: nn.RMSNorm(4), "gate": lambda: nn.Linear(4, 5, bias=False),
            "up": lambda: nn.Linear(4, 5, bias=False), "down": lambda: nn.Linear(5, 2, bias=False)},
        (3, 3), "sequence"),
    owning("squeeze-excite", _squeeze_excite,
        {"stem": lambda: _conv(1, 4), "down": (4, 2), "up": (2, 4), "head": (4, 3)}, (1, 4, 4)),
    owning("quotient", lambda net, x: net.top(x) / (1.0 + net.bottom(x).square()),
        {"top": (3, 2), "bottom": (3, 2)}, (3,)),
    owning("mixture-of-experts",
        lambda net, x: torch.einsum("ne,neo->no", net.router(x).softmax(1),
            torch.stack([expert(x) for expert in net.experts], 1)),
        {"router": (3, 2), "experts": lambda: nn.ModuleList([nn.Linear(3, 2) for _ in range(2)])},
        (3,)),
    owning("two-inputs", lambda net, x, z: net.head(torch.tanh(net.left(x)) * net.right(z)),
        {"left": (2, 3), "right": (4, 3), "head": (3, 2)},
        lambda n: (torch.randn(n, 2), torch.randn(n, 4))),
    owning("named-inputs", lambda net, image, scale: net.head(net.conv(image).mean((2, 3)) * scale),
        {"conv": lambda: _conv(1, 3), "head": (3, 2)},
        lambda n: {"scale": torch.rand(n, 1) + 0.5, "image": torch.randn(n, 1, 3, 3)}),
    owning("cosine-similarity",
        lambda net, x, z: F.cosine_similarity(net.left(x), net.right(z))[:, None],
        {"left": (3, 4), "right": (2, 4)}, lambda n: (torch.randn(n, 3), torch.randn(n, 2))),
])  # fmt: skip


def _each_sample(net: Any, x: Tensor) -> Tensor:
    """Samples one by one, without their dimension, through branches that they choose."""
    rows = [net.left(row) if row.sum() > 0 else torch.tanh(net.right(row)) for row in x]
    return torch.stack(rows)


def _routed(net: Any, x: Tensor) -> Tensor:
    """Each expert sees only the samples sent to it, perhaps none."""
    choice = x[:, 0] > 0
    found = x.new_zeros(len(x), 2)
    found[choice] = net.left(x[choice])
    found[~choice] = torch.tanh(net.right(x[~choice]))
    return found


def _dispatched(net: Any, x: Tensor) -> Tensor:
    """Each expert gets a sample's tokens sent to it, perhaps none, and adds to what there is."""
    tokens = x.flatten(0, 1)
    weight, choice = net.router(tokens).softmax(1).max(1)
    found = x.new_zeros(len(tokens), 2)
    for number, expert in enumerate(net.experts):
        (rows,) = torch.where(choice == number)
        found.index_add_(0, rows, expert(tokens[rows]) * weight[rows, None])
    return found.unflatten(0, x.shape[:2])


def _iterated(net: Any, x: Tensor) -> Tensor:
    """As many steps as the longest sample needs; others stand still, so none sees another."""
    for _ in range(8):
        going = (x.norm(dim=1, keepdim=True) > 0.7).to(x)
        if not going.any():
            break
        x = x - going * 0.5 * torch.tanh(net.step(x))
    return net.head(x)


CONTROL = grouped("control-flow", [
    owning("branch-of-each-sample", _each_sample, {"left": (3, 2), "right": (3, 2)}, (3,),
        samples=5),
    owning("routed-samples", _routed, {"left": (3, 2), "right": (3, 2)}, (3,), samples=5),
    owning("tokens-sent-to-experts", _dispatched,
        {"router": (3, 3), "experts": lambda: nn.ModuleList([nn.Linear(3, 2) for _ in range(3)])},
        (2, 3), "sequence"),
    owning("steps-until-small", _iterated, {"step": (2, 2), "head": (2, 2)}, (2,)),
    owning("samples-reordered", lambda net, x: net.head(torch.tanh(net.stem(x.flip(0)))).flip(0),
        {"stem": (3, 4), "head": (4, 2)}, (3,)),
    owning("samples-second",
        lambda net, x: net.head(torch.tanh(net.stem(x.transpose(0, 1))).transpose(0, 1)),
        {"stem": (3, 4), "head": (4, 2)}, (4, 3), "sequence"),
    owning("samples-last", lambda net, x: (net.w @ torch.tanh(net.v @ x.T)).T,
        {"v": [4, 3], "w": [2, 4]}, (3,)),
    owning("frames-folded-into-samples",
        lambda net, x: net.head(
            torch.tanh(net.conv(x.flatten(0, 1))).mean((2, 3)).unflatten(0, (len(x), -1)).sum(1)),
        {"conv": lambda: nn.Conv2d(1, 3, 2), "head": (3, 2)}, (2, 1, 3, 3)),
    # Two copies of every sample in one call, as when augmentations are averaged.
    Network("samples-repeated",
        lambda: Net(
            lambda net, x: torch.stack(net.body(torch.cat([x, x.flip(1)])).chunk(2)).mean(0),
            body=nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))), (3,)),
    owning("checkpointed",
        lambda net, x: net.head(checkpoint(net.body, net.stem(x), use_reentrant=False)),
        {"stem": (3, 4), "body": lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "head": (4, 2)},
        (3,)),
])  # fmt: skip

NETWORKS = [*SKIPS, *PRODUCTS, *CONTROL]
