"""Layers with parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.curvature.zoo.network import Network, between, between_linear, grouped, owning, sized


def _tokens(vocabulary: int, length: int) -> Callable[[int], Tensor]:
    # Index 0, which may be padding, is always there, and one index comes twice in a sample.
    def draw(samples: int) -> Tensor:
        found = torch.randint(1, vocabulary, (samples, length))
        found[:, 0] = 0
        found[:, 1] = found[:, -1]
        return found

    return draw


def _sequence(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules)


LINEAR = grouped("linear", [
    Network("linear", lambda: nn.Linear(3, 4), (3,)),
    Network("linear-no-bias", lambda: nn.Linear(3, 4, bias=False), (3,)),
    Network("linear-2d", lambda: _sequence(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), (3,)),
    Network("linear-3d",
        lambda: _sequence(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(20, 2)), (5, 3)),
    Network("linear-4d",
        lambda: _sequence(nn.Linear(3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)), (2, 3, 3)),
    Network("linear-positions-out",
        lambda: _sequence(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2)), (4, 3), "sequence"),
    Network("linear-one-feature", lambda: _sequence(nn.Linear(1, 3), nn.Sigmoid(), nn.Linear(3, 1)),
        (1,)),
    Network("bilinear", lambda: nn.Bilinear(2, 3, 2), lambda n: (_rows(n, 2), _rows(n, 3))),
])  # fmt: skip


def _rows(samples: int, features: int) -> Tensor:
    return torch.randn(samples, features)


CONV = grouped("conv", [
    *sized({
        "conv1d": (lambda: nn.Conv1d(2, 3, 2), (5,)),
        "conv1d-stride-dilation": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=2, dilation=2),
            (6,)),
        "conv1d-same-even-kernel": (lambda: nn.Conv1d(2, 2, 4, padding="same"), (6,)),
        "conv1d-longer-than-input": (lambda: nn.Conv1d(2, 2, 5, padding=3), (3,)),
        "conv2d": (lambda: nn.Conv2d(2, 3, 3), (4, 4)),
        "conv2d-no-bias": (lambda: nn.Conv2d(2, 2, 3, bias=False), (4, 5)),
        "conv2d-stride": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (5, 5)),
        "conv2d-stride-leaves-a-rest": (lambda: nn.Conv2d(2, 2, 2, stride=3), (4, 6)),
        "conv2d-uneven": (
            lambda: nn.Conv2d(2, 2, (2, 3), stride=(1, 2), padding=(1, 2), dilation=(2, 1)),
            (4, 5)),
        "conv2d-groups": (lambda: nn.Conv2d(4, 6, 2, groups=2), (4, 4), 4),
        "conv2d-depthwise": (lambda: nn.Conv2d(3, 6, 3, padding=1, groups=3), (3, 3), 3),
        "conv2d-pointwise": (lambda: nn.Conv2d(2, 3, 1), (3, 4)),
        "conv2d-same": (lambda: nn.Conv2d(2, 2, (2, 3), padding="same"), (4, 4)),
        "conv2d-valid": (lambda: nn.Conv2d(2, 2, 2, padding="valid"), (4, 4)),
    }),
    *[
        Network(
            f"conv2d-{mode}",
            between(lambda mode=mode: nn.Conv2d(2, 2, 3, padding=1, padding_mode=mode), 4, 4),
            (1, 4, 4),
        )
        for mode in ("reflect", "replicate", "circular")
    ],
    *[
        # A pixel is met by two taps of the kernel at one position.
        Network(
            f"conv1d-{mode}-two-taps-on-one-pixel",
            between(lambda mode=mode: nn.Conv1d(2, 2, 3, padding=2, padding_mode=mode), 3),
            (1, 3),
        )
        for mode in ("reflect", "replicate", "circular")
    ],
    *sized({
        "conv2d-circular-same": (
            lambda: nn.Conv2d(2, 2, 2, padding="same", padding_mode="circular"), (3, 3)),
        "conv3d": (lambda: nn.Conv3d(2, 2, 2), (2, 2, 2)),
        "conv3d-uneven": (lambda: nn.Conv3d(2, 2, (1, 2, 3), stride=(1, 2, 1), padding=(0, 1, 1)),
            (2, 2, 2)),
        "conv3d-replicate-groups": (
            lambda: nn.Conv3d(2, 4, 2, padding=1, padding_mode="replicate", groups=2, stride=2),
            (2, 2, 2)),
    }),
    owning("conv1d-positions-then-mean", lambda net, x: net.head(torch.tanh(net.conv(x)).mean(2)),
        {"conv": lambda: nn.Conv1d(2, 4, 3), "head": (4, 3)}, (2, 6)),
])  # fmt: skip

TRANSPOSED = grouped("transposed", [
    *sized({
        "conv-transpose1d": (lambda: nn.ConvTranspose1d(2, 3, 3), (4,)),
        "conv-transpose1d-output-padding": (
            lambda: nn.ConvTranspose1d(2, 2, 3, stride=3, padding=1, output_padding=2), (3,)),
        "conv-transpose1d-groups": (lambda: nn.ConvTranspose1d(4, 6, 2, stride=2, groups=2), (3,),
            4),
        "conv-transpose2d": (lambda: nn.ConvTranspose2d(2, 2, 2), (3, 3)),
        "conv-transpose2d-stride": (
            lambda: nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1), (3, 3)),
        "conv-transpose2d-dilation": (
            lambda: nn.ConvTranspose2d(2, 2, 2, dilation=2, output_padding=1), (3, 3)),
        "conv-transpose2d-uneven-no-bias": (
            lambda: nn.ConvTranspose2d(2, 3, (1, 3), stride=(2, 1), padding=(0, 1), bias=False),
            (3, 3)),
    }),
    owning("conv-transpose2d-output-size",
        lambda net, x: net.up(torch.tanh(net.front(x)), output_size=(6, 6)),
        {"front": lambda: nn.Conv2d(1, 2, 3, padding=1),
            "up": lambda: nn.ConvTranspose2d(2, 1, 3, stride=2, padding=1)}, (1, 3, 3), "image"),
    # Outputs between the strides have no input, and are long enough for columns as windows.
    Network("conv-transpose1d-stride-over-kernel",
        lambda: _sequence(nn.Conv1d(1, 1, 1), nn.ConvTranspose1d(1, 1, 1, stride=2)), (1, 64),
        "sequence", samples=2),
    owning("conv-transpose2d-shortcut",
        lambda net, x: net.body(h := torch.tanh(net.front(x))) + net.short(h),
        {"front": lambda: nn.Conv2d(1, 2, 3, padding=1),
            "body": lambda: nn.ConvTranspose2d(2, 1, 3, 2, 1, 1),
            "short": lambda: nn.ConvTranspose2d(2, 1, 1, 2, 0, 1)}, (1, 5, 5), "image", samples=2),
    *sized({
        "conv-transpose3d": (lambda: nn.ConvTranspose3d(2, 2, (1, 2, 2), stride=(1, 1, 2)),
            (1, 2, 2)),
        "conv-transpose3d-output-padding": (
            lambda: nn.ConvTranspose3d(2, 1, 2, stride=2, padding=1, output_padding=1), (1, 2, 2)),
    }),
])  # fmt: skip

EMBEDDING = grouped("embedding", [
    Network("embedding",
        lambda: _sequence(nn.Embedding(6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)),
        _tokens(6, 4)),
    Network("embedding-padding-idx",
        lambda: _sequence(nn.Embedding(6, 3, padding_idx=0), nn.Flatten(), nn.Tanh(),
            nn.Linear(12, 2)), _tokens(6, 4)),
    Network("embedding-negative-padding-idx",
        lambda: _sequence(nn.Embedding(5, 3, padding_idx=-1), nn.Flatten(), nn.Linear(12, 2)),
        _tokens(5, 4)),
    owning("embedding-mean-of-tokens", lambda net, x: net.head(net.table(x).mean(1)),
        {"table": lambda: nn.Embedding(6, 3), "head": (3, 2)}, _tokens(6, 4)),
    owning("embedding-sum-of-tokens", lambda net, x: net.head(torch.tanh(net.table(x)).sum(1)),
        {"table": lambda: nn.Embedding(6, 3), "head": (3, 2)}, _tokens(6, 5)),
    Network("embedding-sparse",
        lambda: _sequence(nn.Embedding(6, 3, sparse=True), nn.Flatten(), nn.Linear(12, 2)),
        _tokens(6, 4)),
    Network("embedding-one-index-a-sample",
        lambda: _sequence(nn.Embedding(6, 3), nn.Tanh(), nn.Linear(3, 2)),
        lambda n: torch.arange(n) % 6),
    Network("embedding-bag-mean",
        lambda: _sequence(nn.EmbeddingBag(6, 3), nn.Tanh(), nn.Linear(3, 2)), _tokens(6, 4)),
    Network("embedding-bag-sum",
        lambda: _sequence(nn.EmbeddingBag(6, 3, mode="sum"), nn.Linear(3, 2)), _tokens(6, 4)),
    owning("embedding-functional", lambda net, x: net.head(F.embedding(x, net.table).flatten(1)),
        {"table": lambda: nn.Parameter(torch.randn(6, 3)), "head": (12, 2)}, _tokens(6, 4)),
])  # fmt: skip

NORM = grouped("norm", [
    Network("batch-norm1d", between_linear(lambda: nn.BatchNorm1d(4)), (3,)),
    *sized({
        "batch-norm1d-positions": (lambda: nn.BatchNorm1d(2), (4,)),
        "batch-norm2d": (lambda: nn.BatchNorm2d(3), (3, 3), 3),
        "batch-norm2d-not-affine": (lambda: nn.BatchNorm2d(2, affine=False), (3, 3)),
        "batch-norm2d-eps": (lambda: nn.BatchNorm2d(2, eps=0.3), (3, 3)),
        "batch-norm3d": (lambda: nn.BatchNorm3d(2), (2, 2, 2)),
    }),
    Network("batch-norm-first", lambda: _sequence(nn.BatchNorm1d(3), nn.Linear(3, 2)), (3,)),
    Network("batch-norm-last", lambda: _sequence(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2)), (1, 3, 3),
        "image"),
    Network("layer-norm", between_linear(lambda: nn.LayerNorm(4)), (3,)),
    Network("layer-norm-no-bias", between_linear(lambda: nn.LayerNorm(4, bias=False)), (3,)),
    Network("layer-norm-not-affine",
        between_linear(lambda: nn.LayerNorm(4, elementwise_affine=False)), (3,)),
    *sized({
        "layer-norm-image": (lambda: nn.LayerNorm([2, 3, 3]), (3, 3)),
        "layer-norm-positions": (lambda: nn.LayerNorm(4), (4,)),
        "group-norm": (lambda: nn.GroupNorm(2, 4), (3, 3), 4),
        "group-norm-one-group": (lambda: nn.GroupNorm(1, 2), (3, 3)),
        "group-norm-not-affine": (lambda: nn.GroupNorm(2, 4, affine=False), (4,), 4),
    }),
    Network("group-norm-one-position", between_linear(lambda: nn.GroupNorm(2, 4)), (3,)),
    *sized({
        "instance-norm1d": (lambda: nn.InstanceNorm1d(2, affine=True), (4,)),
        "instance-norm2d": (lambda: nn.InstanceNorm2d(2, affine=True), (3, 3)),
        "instance-norm2d-not-affine": (lambda: nn.InstanceNorm2d(2), (3, 3)),
        "instance-norm2d-running": (
            lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True), (3, 3)),
        "instance-norm3d": (lambda: nn.InstanceNorm3d(2, affine=True), (2, 2, 2)),
    }),
    Network("rms-norm", between_linear(lambda: nn.RMSNorm(4, eps=1e-3)), (3,)),
    *sized({
        "rms-norm-two-dims": (lambda: nn.RMSNorm([3, 3]), (3, 3)),
        "local-response-norm": (lambda: nn.LocalResponseNorm(2), (3, 3)),
    }),
    owning("functional-layer-norm",
        lambda net, x: net.head(F.layer_norm(net.stem(x), (4,), net.scale, net.shift)),
        {"stem": (3, 4), "scale": lambda: nn.Parameter(torch.randn(4)),
            "shift": lambda: nn.Parameter(torch.randn(4)), "head": (4, 2)}, (3,)),
])  # fmt: skip

PRELU = grouped("prelu", [
    Network("prelu-shared", between_linear(nn.PReLU), (3,)),
    Network("prelu-per-feature", between_linear(lambda: nn.PReLU(4)), (3,)),
    *sized({
        "prelu-per-channel": (lambda: nn.PReLU(3), (3, 3), 3),
        "prelu-shared-image": (nn.PReLU, (3, 3)),
    }),
])  # fmt: skip

NETWORKS = [*LINEAR, *CONV, *TRANSPOSED, *EMBEDDING, *NORM, *PRELU]
