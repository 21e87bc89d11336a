"""Layers and functions without parameters, between layers that have some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.curvature.zoo.network import Apply, Network, between, between_linear, grouped, owning

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": lambda: nn.ELU(0.7),
    "hardshrink": lambda: nn.Hardshrink(0.3),
    "hardsigmoid": nn.Hardsigmoid,
    "hardswish": nn.Hardswish,
    "hardtanh": lambda: nn.Hardtanh(-0.5, 0.8),
    "leaky-relu": lambda: nn.LeakyReLU(0.2),
    "log-sigmoid": nn.LogSigmoid,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "rrelu": lambda: nn.RReLU(0.1, 0.4),
    "selu": nn.SELU,
    "celu": lambda: nn.CELU(0.8),
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU("tanh"),
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "softplus-beta": lambda: nn.Softplus(beta=3.0, threshold=2.0),
    "softshrink": lambda: nn.Softshrink(0.3),
    "softsign": nn.Softsign,
    "tanh": nn.Tanh,
    "tanhshrink": nn.Tanhshrink,
    "threshold": lambda: nn.Threshold(0.1, -2.0),
    "identity": nn.Identity,
    "relu-in-place": lambda: nn.ReLU(inplace=True),
    "elu-in-place": lambda: nn.ELU(inplace=True),
    "leaky-relu-in-place": lambda: nn.LeakyReLU(0.1, inplace=True),
    "silu-in-place": lambda: nn.SiLU(inplace=True),
    "hardtanh-in-place": lambda: nn.Hardtanh(inplace=True),
    "softmax": lambda: nn.Softmax(1),
    "softmin": lambda: nn.Softmin(1),
    "log-softmax": lambda: nn.LogSoftmax(1),
    "glu": lambda: nn.GLU(1),
}

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch-relu": torch.relu,
    "torch-tanh": torch.tanh,
    "torch-sigmoid": torch.sigmoid,
    "method-relu": lambda x: x.relu(),
    "method-tanh": lambda x: x.tanh(),
    "method-relu_": lambda x: x.relu_(),
    "method-tanh_": lambda x: x.tanh_(),
    "method-mul_": lambda x: x.mul_(2.0).add_(1.0),
    "functional-relu": F.relu,
    "functional-relu-in-place": lambda x: F.relu(x, inplace=True),
    "functional-gelu": F.gelu,
    "functional-silu": F.silu,
    "functional-mish": F.mish,
    "functional-elu": F.elu,
    "functional-leaky-relu": lambda x: F.leaky_relu(x, 0.3),
    "functional-softplus": F.softplus,
    "functional-logsigmoid": F.logsigmoid,
    "functional-hardtanh": F.hardtanh,
    "functional-glu": F.glu,
    "functional-softmax": lambda x: F.softmax(x, -1),
    "functional-log-softmax": lambda x: F.log_softmax(x, -1),
    "functional-normalize": F.normalize,
    "functional-dropout-eval": lambda x: F.dropout(x, 0.5, training=False),
    "sin": torch.sin,
    "cos": torch.cos,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "erf": torch.erf,
    "atan": torch.atan,
    "abs": torch.abs,
    "square": torch.square,
    "negative": torch.neg,
    "reciprocal": lambda x: 1.0 / (1.5 + x.square()),
    "sqrt": lambda x: torch.sqrt(x.square() + 0.1),
    "rsqrt": lambda x: torch.rsqrt(x.square() + 0.1),
    "log": lambda x: torch.log(x.square() + 0.5),
    "log1p": lambda x: torch.log1p(x.exp()),
    "pow-number": lambda x: x**3,
    "pow-of-itself": lambda x: (x.abs() + 0.5) ** x,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "where": lambda x: torch.where(x > 0, x.sin(), 0.5 * x),
    "maximum": lambda x: torch.maximum(x, 0.3 * x.cos()),
    "masked-fill": lambda x: x.masked_fill(x < -0.5, 0.1),
    "lerp": lambda x: torch.lerp(x, x.tanh(), 0.3),
    "swish-by-hand": lambda x: x * x.sigmoid(),
    "sum-of-itself": lambda x: x + x,
    "product-of-itself": lambda x: x * x * x,
    "centred-features": lambda x: x - x.mean(1, keepdim=True),
    "standardised-features": lambda x: (x - x.mean(1, True)) / (x.std(1, keepdim=True) + 0.1),
    "divided-by-its-norm": lambda x: x / x.norm(dim=1, keepdim=True),
    "divided-by-its-sum": lambda x: x.exp() / x.exp().sum(1, keepdim=True),
}

# On [N, 2, 6], ending in any shape.
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(2),
    "mean": lambda x: x.mean(2),
    "mean-of-two-dims": lambda x: x.unflatten(2, (2, 3)).mean((2, 3)),
    "amax": lambda x: x.amax(2),
    "amin": lambda x: x.amin(2),
    "max-with-indices": lambda x: x.max(2).values,
    "median": lambda x: x.median(2).values,
    "var": lambda x: x.var(2),
    "std": lambda x: x.std(2, unbiased=False),
    "norm": lambda x: x.norm(dim=2),
    "prod": lambda x: x.prod(2),
    "logsumexp": lambda x: x.logsumexp(2),
    "cumsum": lambda x: x.cumsum(2),
    "cumprod": lambda x: x.cumprod(2),
    "logcumsumexp": lambda x: x.logcumsumexp(2),
    "cummax": lambda x: x.cummax(2).values,
    "sort": lambda x: x.sort(2).values,
    "topk": lambda x: x.topk(3, 2).values,
    "diff": lambda x: x.diff(dim=2),
    "softmax-over-positions": lambda x: x.softmax(2),
    "softmax-over-channels": lambda x: x.softmax(1),
}

SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(x.shape[0], 3, 4),
    "view-with-minus-one": lambda x: x.view(-1, 12),
    "reshape": lambda x: x.reshape(len(x), -1),
    "flatten": lambda x: torch.flatten(x, 1),
    "unflatten": lambda x: x.unflatten(2, (3, 2)),
    "permute": lambda x: x.permute(0, 2, 1),
    "transpose": lambda x: x.transpose(1, 2).contiguous(),
    "movedim": lambda x: x.movedim(1, 2),
    "samples-second": lambda x: x.transpose(0, 1).tanh().transpose(0, 1),
    "samples-folded": lambda x: x.reshape(-1, 6).sin().view(-1, 2, 6),
    "samples-folded-with-channels": lambda x: x.flatten(0, 1).softmax(1).unflatten(0, (-1, 2)),
    "chunk": lambda x: torch.cat([c * (k + 1) for k, c in enumerate(x.chunk(3, 2))], 2),
    "split": lambda x: torch.cat(list(x.split([1, 5], 2))[::-1], 2),
    "unbind": lambda x: x.unbind(1)[0] * x.unbind(1)[1],
    "stack": lambda x: torch.stack([x, x.sin()], 1),
    "concatenate": lambda x: torch.cat([x, x.tanh()], 1),
    "unsqueeze-squeeze": lambda x: x.unsqueeze(1).tanh().squeeze(1),
    "roll": lambda x: x.roll(2, 2),
    "flip": lambda x: x.flip(2),
    "rotate": lambda x: x.rot90(1, (1, 2)),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 2, -1, -1),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat-interleave": lambda x: x.repeat_interleave(2, 2),
    "slice": lambda x: x[:, :, ::2],
    "slice-last": lambda x: x[..., -1],
    "index-list": lambda x: x[:, :, [0, 0, 3]],
    "index-select": lambda x: x.index_select(2, torch.tensor([4, 1, 1])),
    "gather": lambda x: x.gather(2, torch.tensor([0, 5, 0]).expand(x.shape[0], 2, 3)),
    "narrow": lambda x: x.narrow(2, 1, 3),
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "tril": lambda x: x.tril(),
    "windows": lambda x: x.unfold(2, 3, 2),
    "pad": lambda x: F.pad(x, (2, -1), value=0.5),
    "pad-circular": lambda x: F.pad(x, (2, 1), mode="circular"),
    "einsum": lambda x: torch.einsum("nct,ndt->ncd", x, x.tanh()),
    "batched-product": lambda x: torch.bmm(x, x.tanh().mT),
    "outer-product": lambda x: x[:, 0, :, None] * x[:, 1, None, :3],
    "distance": lambda x: torch.cdist(x, x.flip(1)),
    "fourier": lambda x: torch.fft.rfft(x, dim=2).abs(),
    "solve": lambda x: torch.linalg.solve(torch.eye(2).to(x) * 4 + x[:, :, :2].tanh(), x[:, :, 2:]),
    "assign-in-place": lambda x: _assigned(x),
    # As a cache of keys and values that holds none yet.
    "concatenate-empty": lambda x: torch.cat([torch.tensor([]).to(x), x, x.tanh()], 2),
}


def _assigned(x: Tensor) -> Tensor:
    found = torch.zeros_like(x)
    found[:, 0] = x[:, 1].sin()
    found[:, 1, 2:] = x[:, 0, 2:]
    return found


POOLS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "max-pool1d": (lambda: nn.MaxPool1d(2), (6,)),
    "max-pool1d-overlap": (lambda: nn.MaxPool1d(3, stride=1, padding=1), (5,)),
    "max-pool2d": (lambda: nn.MaxPool2d(2), (4, 4)),
    "max-pool2d-overlap": (lambda: nn.MaxPool2d(3, stride=2, padding=1), (5, 5)),
    "max-pool2d-dilation": (lambda: nn.MaxPool2d(2, stride=1, dilation=2), (4, 4)),
    "max-pool2d-ceil": (lambda: nn.MaxPool2d(2, ceil_mode=True), (5, 3)),
    "max-pool3d": (lambda: nn.MaxPool3d(2), (3, 3, 3)),
    "avg-pool1d": (lambda: nn.AvgPool1d(2), (6,)),
    "avg-pool1d-padding": (lambda: nn.AvgPool1d(3, stride=2, padding=1), (6,)),
    "avg-pool2d": (lambda: nn.AvgPool2d(2), (4, 4)),
    "avg-pool2d-pad-not-counted": (
        lambda: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), (4, 4)),
    "avg-pool2d-divisor": (lambda: nn.AvgPool2d(2, divisor_override=3), (4, 4)),
    "avg-pool2d-ceil": (lambda: nn.AvgPool2d(2, ceil_mode=True), (5, 3)),
    "avg-pool3d": (lambda: nn.AvgPool3d(2), (3, 3, 3)),
    "adaptive-avg-pool1d": (lambda: nn.AdaptiveAvgPool1d(3), (5,)),
    "adaptive-avg-pool2d": (lambda: nn.AdaptiveAvgPool2d((2, 3)), (5, 4)),
    "adaptive-avg-pool2d-one": (lambda: nn.AdaptiveAvgPool2d(1), (3, 4)),
    "adaptive-avg-pool3d": (lambda: nn.AdaptiveAvgPool3d((1, 2, 2)), (2, 2, 2)),
    "adaptive-max-pool1d": (lambda: nn.AdaptiveMaxPool1d(3), (5,)),
    "adaptive-max-pool2d": (lambda: nn.AdaptiveMaxPool2d((None, 2)), (3, 4)),
    "adaptive-max-pool3d": (lambda: nn.AdaptiveMaxPool3d(2), (2, 2, 2)),
    "lp-pool1d": (lambda: nn.LPPool1d(2, 2), (6,)),
    "lp-pool2d": (lambda: nn.LPPool2d(2, 2), (4, 4)),
    "lp-pool3d": (lambda: nn.LPPool3d(2, 2), (2, 2, 2)),
}  # fmt: skip

RESIZES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "nearest1d": (lambda: nn.Upsample(scale_factor=2), (4,)),
    "nearest2d": (lambda: nn.Upsample(scale_factor=2), (3, 3)),
    "nearest2d-uneven": (lambda: nn.Upsample(size=(5, 7)), (3, 4)),
    "nearest2d-smaller": (lambda: nn.Upsample(size=(2, 3)), (4, 4)),
    "nearest-exact2d": (lambda: nn.Upsample(size=(5, 4), mode="nearest-exact"), (3, 3)),
    "nearest3d": (lambda: nn.Upsample(scale_factor=(1, 2, 2)), (1, 2, 2)),
    "linear": (lambda: nn.Upsample(scale_factor=2, mode="linear"), (4,)),
    "bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (3, 3)),
    "bilinear-corners": (lambda: nn.Upsample(size=(5, 4), mode="bilinear", align_corners=True),
        (3, 3)),
    "bilinear-antialias": (
        lambda: Apply(lambda x: F.interpolate(x, size=(2, 3), mode="bilinear", antialias=True)),
        (5, 5)),
    "upsampling-bilinear2d": (lambda: nn.UpsamplingBilinear2d(scale_factor=2), (3, 3)),
    "bicubic": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (3, 3)),
    "bicubic-corners": (lambda: nn.Upsample(size=(5, 5), mode="bicubic", align_corners=True),
        (3, 3)),
    "trilinear": (lambda: nn.Upsample(scale_factor=(1, 2, 2), mode="trilinear"), (1, 2, 2)),
    "interpolate-function": (lambda: Apply(lambda x: F.interpolate(x, scale_factor=1.5)), (4, 4)),
    "grid-sample": (lambda: Apply(lambda x: F.grid_sample(x, _grid(x), align_corners=False)),
        (3, 3)),
}  # fmt: skip


def _grid(x: Tensor) -> Tensor:
    turn = torch.tensor([[0.8, 0.3, 0.1], [-0.3, 0.8, 0.0]]).to(x)
    return F.affine_grid(turn.expand(len(x), 2, 3), list(x.shape), align_corners=False)


REARRANGEMENTS: dict[str, tuple[Callable[[], nn.Module], int, tuple[int, ...]]] = {
    "pixel-shuffle": (lambda: nn.PixelShuffle(2), 4, (3, 3)),
    "pixel-unshuffle": (lambda: nn.PixelUnshuffle(2), 2, (4, 4)),
    "channel-shuffle": (lambda: nn.ChannelShuffle(2), 4, (3, 3)),
    "unfold": (lambda: nn.Unfold(2, padding=1, stride=2), 2, (4, 4)),
    "fold": (lambda: nn.Sequential(nn.Unfold(2), nn.Tanh(), nn.Fold((3, 3), 2)), 2, (3, 3)),
    "flatten": (nn.Flatten, 2, (3, 3)),
    "flatten-spatial": (lambda: nn.Flatten(2), 2, (3, 3)),
    "unflatten": (lambda: nn.Unflatten(1, (2, 2)), 4, (3, 3)),
    "softmax2d": (nn.Softmax2d, 3, (3, 3)),
    "glu-channels": (lambda: nn.GLU(1), 4, (3, 3)),
    "zero-pad1d": (lambda: nn.ZeroPad1d((1, 2)), 2, (4,)),
    "zero-pad2d": (lambda: nn.ZeroPad2d((1, 0, 2, 1)), 2, (3, 3)),
    "zero-pad2d-negative": (lambda: nn.ZeroPad2d((-1, 1, 0, -1)), 2, (3, 3)),
    "zero-pad3d": (lambda: nn.ZeroPad3d((1, 0, 0, 0, 0, 1)), 2, (1, 2, 2)),
    "constant-pad1d": (lambda: nn.ConstantPad1d(2, 0.7), 2, (4,)),
    "constant-pad2d": (lambda: nn.ConstantPad2d(1, -1.0), 2, (3, 3)),
    "constant-pad3d": (lambda: nn.ConstantPad3d((1, 0, 0, 0, 0, 0), 2.0), 2, (1, 2, 2)),
    "reflection-pad1d": (lambda: nn.ReflectionPad1d(2), 2, (4,)),
    "reflection-pad2d": (lambda: nn.ReflectionPad2d(1), 2, (3, 3)),
    "reflection-pad3d": (lambda: nn.ReflectionPad3d((1, 0, 0, 0, 0, 0)), 2, (1, 2, 2)),
    "replication-pad1d": (lambda: nn.ReplicationPad1d(2), 2, (3,)),
    "replication-pad2d": (lambda: nn.ReplicationPad2d((2, 1, 0, 1)), 2, (3, 3)),
    "replication-pad3d": (lambda: nn.ReplicationPad3d((1, 0, 0, 0, 0, 0)), 2, (1, 2, 2)),
    "circular-pad1d": (lambda: nn.CircularPad1d((2, 1)), 2, (3,)),
    "circular-pad2d": (lambda: nn.CircularPad2d(1), 2, (3, 3)),
    "circular-pad3d": (lambda: nn.CircularPad3d((1, 0, 0, 0, 0, 0)), 2, (1, 2, 2)),
    "dropout": (nn.Dropout, 2, (3, 3)),
    "dropout1d": (nn.Dropout1d, 2, (4,)),
    "dropout2d": (nn.Dropout2d, 2, (3, 3)),
    "dropout3d": (nn.Dropout3d, 2, (1, 2, 2)),
    "alpha-dropout": (nn.AlphaDropout, 2, (3, 3)),
    "feature-alpha-dropout": (nn.FeatureAlphaDropout, 2, (3, 3)),
    "max-unpool": (lambda: _Unpool(), 2, (4, 4)),
}


class _Unpool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pooled, indices = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(pooled.tanh(), indices, [2, 2])


def _each(
    group: str,
    table: Mapping[str, Any],
    build: Callable[[Any], tuple[Callable[[], nn.Module], tuple[int, ...]]],
    prefix: str = "",
) -> list[Network]:
    """A network for each entry of a table: `build` gives its model and the shape of an input."""
    named = {f"{prefix or group}-{name}": build(entry) for name, entry in table.items()}
    return grouped(group, [Network(id, model, shape) for id, (model, shape) in named.items()])


def _between(layer: Callable[[], nn.Module], *size: int, channels: int = 2) -> Any:
    return between(layer, *size, channels=channels), (1, *size)


def _on_images(*names: str) -> dict[str, Callable[[], nn.Module]]:
    return {name: ACTIVATIONS[name] for name in names}


NETWORKS = [
    *_each("activation", ACTIVATIONS, lambda layer: (between_linear(layer), (3,))),
    *_each(
        "activation-image",
        _on_images("relu", "gelu", "softplus", "relu-in-place", "softmax", "log-softmax"),
        lambda layer: _between(layer, 3, 3),
        "image",
    ),
    *_each("function", FUNCTIONS, lambda run: (between_linear(lambda: Apply(run)), (3,))),
    *_each("reduction", REDUCTIONS, lambda run: _between(lambda: Apply(run), 6)),
    *_each("shape", SHAPES, lambda run: _between(lambda: Apply(run), 6)),
    *_each("pool", POOLS, lambda entry: _between(entry[0], *entry[1])),
    *_each("resize", RESIZES, lambda entry: _between(entry[0], *entry[1])),
    *_each(
        "rearrangement",
        REARRANGEMENTS,
        lambda entry: _between(entry[0], *entry[2], channels=entry[1]),
        "layer",
    ),
    *grouped("activation-last", [
        owning("softmax-last", lambda net, x: net.layer(x).softmax(1), {"layer": (3, 4)}, (3,)),
        Network("relu-last", lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)), (3,)),
        Network("tanh-first", lambda: nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(6, 3)),
            (2, 3)),
    ]),
]  # fmt: skip
