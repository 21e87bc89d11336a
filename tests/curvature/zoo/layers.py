"""Layers with parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.curvature.zoo.network import Net, Network, between, between_linear, grouped


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


LINEAR = grouped(
    "linear",
    [
        Network("linear", lambda: nn.Linear(3, 4), (3,)),
        Network("linear-no-bias", lambda: nn.Linear(3, 4, bias=False), (3,)),
        Network(
            "linear-2d",
            lambda: _sequence(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)),
            (3,),
        ),
        Network(
            "linear-3d",
            lambda: _sequence(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(20, 2)),
            (5, 3),
        ),
        Network(
            "linear-4d",
            lambda: _sequence(nn.Linear(3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)),
            (2, 3, 3),
        ),
        Network(
            "linear-positions-out",
            lambda: _sequence(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2)),
            (4, 3),
            "sequence",
        ),
        Network(
            "linear-one-feature",
            lambda: _sequence(nn.Linear(1, 3), nn.Sigmoid(), nn.Linear(3, 1)),
            (1,),
        ),
        Network("bilinear", lambda: nn.Bilinear(2, 3, 2), lambda n: (_rows(n, 2), _rows(n, 3))),
    ],
)


def _rows(samples: int, features: int) -> Tensor:
    return torch.randn(samples, features)


CONV = grouped(
    "conv",
    [
        Network("conv1d", between(lambda: nn.Conv1d(2, 3, 2), 5), (1, 5)),
        Network(
            "conv1d-stride-dilation",
            between(lambda: nn.Conv1d(2, 3, 3, stride=2, padding=2, dilation=2), 6),
            (1, 6),
        ),
        Network(
            "conv1d-same-even-kernel",
            between(lambda: nn.Conv1d(2, 2, 4, padding="same"), 6),
            (1, 6),
        ),
        Network(
            "conv1d-longer-than-input", between(lambda: nn.Conv1d(2, 2, 5, padding=3), 3), (1, 3)
        ),
        Network("conv2d", between(lambda: nn.Conv2d(2, 3, 3), 4, 4), (1, 4, 4)),
        Network("conv2d-no-bias", between(lambda: nn.Conv2d(2, 2, 3, bias=False), 4, 5), (1, 4, 5)),
        Network(
            "conv2d-stride",
            between(lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), 5, 5),
            (1, 5, 5),
        ),
        Network(
            "conv2d-stride-leaves-a-rest",
            between(lambda: nn.Conv2d(2, 2, 2, stride=3), 4, 6),
            (1, 4, 6),
        ),
        Network(
            "conv2d-uneven",
            between(
                lambda: nn.Conv2d(2, 2, (2, 3), stride=(1, 2), padding=(1, 2), dilation=(2, 1)),
                4,
                5,
            ),
            (1, 4, 5),
        ),
        Network(
            "conv2d-groups",
            between(lambda: nn.Conv2d(4, 6, 2, groups=2), 4, 4, channels=4),
            (1, 4, 4),
        ),
        Network(
            "conv2d-depthwise",
            between(lambda: nn.Conv2d(3, 6, 3, padding=1, groups=3), 3, 3, channels=3),
            (1, 3, 3),
        ),
        Network("conv2d-pointwise", between(lambda: nn.Conv2d(2, 3, 1), 3, 4), (1, 3, 4)),
        Network(
            "conv2d-same", between(lambda: nn.Conv2d(2, 2, (2, 3), padding="same"), 4, 4), (1, 4, 4)
        ),
        Network(
            "conv2d-valid", between(lambda: nn.Conv2d(2, 2, 2, padding="valid"), 4, 4), (1, 4, 4)
        ),
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
        Network(
            "conv2d-circular-same",
            between(lambda: nn.Conv2d(2, 2, 2, padding="same", padding_mode="circular"), 3, 3),
            (1, 3, 3),
        ),
        Network("conv3d", between(lambda: nn.Conv3d(2, 2, 2), 2, 2, 2), (1, 2, 2, 2)),
        Network(
            "conv3d-uneven",
            between(
                lambda: nn.Conv3d(2, 2, (1, 2, 3), stride=(1, 2, 1), padding=(0, 1, 1)), 2, 2, 2
            ),
            (1, 2, 2, 2),
        ),
        Network(
            "conv3d-replicate-groups",
            between(
                lambda: nn.Conv3d(2, 4, 2, padding=1, padding_mode="replicate", groups=2, stride=2),
                2,
                2,
                2,
            ),
            (1, 2, 2, 2),
        ),
        Network(
            "conv1d-positions-then-mean",
            lambda: Net(
                lambda net, x: net.head(torch.tanh(net.conv(x)).mean(2)),
                conv=nn.Conv1d(2, 4, 3),
                head=nn.Linear(4, 3),
            ),
            (2, 6),
        ),
    ],
)

TRANSPOSED = grouped(
    "transposed",
    [
        Network("conv-transpose1d", between(lambda: nn.ConvTranspose1d(2, 3, 3), 4), (1, 4)),
        Network(
            "conv-transpose1d-output-padding",
            between(lambda: nn.ConvTranspose1d(2, 2, 3, stride=3, padding=1, output_padding=2), 3),
            (1, 3),
        ),
        Network(
            "conv-transpose1d-groups",
            between(lambda: nn.ConvTranspose1d(4, 6, 2, stride=2, groups=2), 3, channels=4),
            (1, 3),
        ),
        Network("conv-transpose2d", between(lambda: nn.ConvTranspose2d(2, 2, 2), 3, 3), (1, 3, 3)),
        Network(
            "conv-transpose2d-stride",
            between(
                lambda: nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1), 3, 3
            ),
            (1, 3, 3),
        ),
        Network(
            "conv-transpose2d-dilation",
            between(lambda: nn.ConvTranspose2d(2, 2, 2, dilation=2, output_padding=1), 3, 3),
            (1, 3, 3),
        ),
        Network(
            "conv-transpose2d-uneven-no-bias",
            between(
                lambda: nn.ConvTranspose2d(2, 3, (1, 3), stride=(2, 1), padding=(0, 1), bias=False),
                3,
                3,
            ),
            (1, 3, 3),
        ),
        Network(
            "conv-transpose2d-output-size",
            lambda: Net(
                lambda net, x: net.up(torch.tanh(net.front(x)), output_size=(6, 6)),
                front=nn.Conv2d(1, 2, 3, padding=1),
                up=nn.ConvTranspose2d(2, 1, 3, stride=2, padding=1),
            ),
            (1, 3, 3),
            "image",
        ),
        Network(
            # Outputs between the strides have no input, and are long enough for columns as windows.
            "conv-transpose1d-stride-over-kernel",
            lambda: _sequence(nn.Conv1d(1, 1, 1), nn.ConvTranspose1d(1, 1, 1, stride=2)),
            (1, 64),
            "sequence",
            samples=2,
        ),
        Network(
            "conv-transpose2d-shortcut",
            lambda: Net(
                lambda net, x: net.body(h := torch.tanh(net.front(x))) + net.short(h),
                front=nn.Conv2d(1, 2, 3, padding=1),
                body=nn.ConvTranspose2d(2, 1, 3, 2, 1, 1),
                short=nn.ConvTranspose2d(2, 1, 1, 2, 0, 1),
            ),
            (1, 5, 5),
            "image",
            samples=2,
        ),
        Network(
            "conv-transpose3d",
            between(lambda: nn.ConvTranspose3d(2, 2, (1, 2, 2), stride=(1, 1, 2)), 1, 2, 2),
            (1, 1, 2, 2),
        ),
        Network(
            "conv-transpose3d-output-padding",
            between(
                lambda: nn.ConvTranspose3d(2, 1, 2, stride=2, padding=1, output_padding=1), 1, 2, 2
            ),
            (1, 1, 2, 2),
        ),
    ],
)

EMBEDDING = grouped(
    "embedding",
    [
        Network(
            "embedding",
            lambda: _sequence(nn.Embedding(6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)),
            _tokens(6, 4),
        ),
        Network(
            "embedding-padding-idx",
            lambda: _sequence(
                nn.Embedding(6, 3, padding_idx=0), nn.Flatten(), nn.Tanh(), nn.Linear(12, 2)
            ),
            _tokens(6, 4),
        ),
        Network(
            "embedding-negative-padding-idx",
            lambda: _sequence(nn.Embedding(5, 3, padding_idx=-1), nn.Flatten(), nn.Linear(12, 2)),
            _tokens(5, 4),
        ),
        Network(
            "embedding-mean-of-tokens",
            lambda: Net(
                lambda net, x: net.head(net.table(x).mean(1)),
                table=nn.Embedding(6, 3),
                head=nn.Linear(3, 2),
            ),
            _tokens(6, 4),
        ),
        Network(
            "embedding-sum-of-tokens",
            lambda: Net(
                lambda net, x: net.head(torch.tanh(net.table(x)).sum(1)),
                table=nn.Embedding(6, 3),
                head=nn.Linear(3, 2),
            ),
            _tokens(6, 5),
        ),
        Network(
            "embedding-sparse",
            lambda: _sequence(nn.Embedding(6, 3, sparse=True), nn.Flatten(), nn.Linear(12, 2)),
            _tokens(6, 4),
        ),
        Network(
            "embedding-one-index-a-sample",
            lambda: _sequence(nn.Embedding(6, 3), nn.Tanh(), nn.Linear(3, 2)),
            lambda n: torch.arange(n) % 6,
        ),
        Network(
            "embedding-bag-mean",
            lambda: _sequence(nn.EmbeddingBag(6, 3), nn.Tanh(), nn.Linear(3, 2)),
            _tokens(6, 4),
        ),
        Network(
            "embedding-bag-sum",
            lambda: _sequence(nn.EmbeddingBag(6, 3, mode="sum"), nn.Linear(3, 2)),
            _tokens(6, 4),
        ),
        Network(
            "embedding-functional",
            lambda: Net(
                lambda net, x: net.head(F.embedding(x, net.table).flatten(1)),
                table=nn.Parameter(torch.randn(6, 3)),
                head=nn.Linear(12, 2),
            ),
            _tokens(6, 4),
        ),
    ],
)

NORM = grouped(
    "norm",
    [
        Network("batch-norm1d", between_linear(lambda: nn.BatchNorm1d(4)), (3,)),
        Network("batch-norm1d-positions", between(lambda: nn.BatchNorm1d(2), 4), (1, 4)),
        Network("batch-norm2d", between(lambda: nn.BatchNorm2d(3), 3, 3, channels=3), (1, 3, 3)),
        Network(
            "batch-norm2d-not-affine",
            between(lambda: nn.BatchNorm2d(2, affine=False), 3, 3),
            (1, 3, 3),
        ),
        Network("batch-norm2d-eps", between(lambda: nn.BatchNorm2d(2, eps=0.3), 3, 3), (1, 3, 3)),
        Network("batch-norm3d", between(lambda: nn.BatchNorm3d(2), 2, 2, 2), (1, 2, 2, 2)),
        Network("batch-norm-first", lambda: _sequence(nn.BatchNorm1d(3), nn.Linear(3, 2)), (3,)),
        Network(
            "batch-norm-last",
            lambda: _sequence(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2)),
            (1, 3, 3),
            "image",
        ),
        Network("layer-norm", between_linear(lambda: nn.LayerNorm(4)), (3,)),
        Network("layer-norm-no-bias", between_linear(lambda: nn.LayerNorm(4, bias=False)), (3,)),
        Network(
            "layer-norm-not-affine",
            between_linear(lambda: nn.LayerNorm(4, elementwise_affine=False)),
            (3,),
        ),
        Network("layer-norm-image", between(lambda: nn.LayerNorm([2, 3, 3]), 3, 3), (1, 3, 3)),
        Network("layer-norm-positions", between(lambda: nn.LayerNorm(4), 4), (1, 4)),
        Network("group-norm", between(lambda: nn.GroupNorm(2, 4), 3, 3, channels=4), (1, 3, 3)),
        Network("group-norm-one-group", between(lambda: nn.GroupNorm(1, 2), 3, 3), (1, 3, 3)),
        Network(
            "group-norm-not-affine",
            between(lambda: nn.GroupNorm(2, 4, affine=False), 4, channels=4),
            (1, 4),
        ),
        Network("group-norm-one-position", between_linear(lambda: nn.GroupNorm(2, 4)), (3,)),
        Network("instance-norm1d", between(lambda: nn.InstanceNorm1d(2, affine=True), 4), (1, 4)),
        Network(
            "instance-norm2d", between(lambda: nn.InstanceNorm2d(2, affine=True), 3, 3), (1, 3, 3)
        ),
        Network(
            "instance-norm2d-not-affine", between(lambda: nn.InstanceNorm2d(2), 3, 3), (1, 3, 3)
        ),
        Network(
            "instance-norm2d-running",
            between(lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True), 3, 3),
            (1, 3, 3),
        ),
        Network(
            "instance-norm3d",
            between(lambda: nn.InstanceNorm3d(2, affine=True), 2, 2, 2),
            (1, 2, 2, 2),
        ),
        Network("rms-norm", between_linear(lambda: nn.RMSNorm(4, eps=1e-3)), (3,)),
        Network("rms-norm-two-dims", between(lambda: nn.RMSNorm([3, 3]), 3, 3), (1, 3, 3)),
        Network("local-response-norm", between(lambda: nn.LocalResponseNorm(2), 3, 3), (1, 3, 3)),
        Network(
            "functional-layer-norm",
            lambda: Net(
                lambda net, x: net.head(F.layer_norm(net.stem(x), (4,), net.scale, net.shift)),
                stem=nn.Linear(3, 4),
                scale=nn.Parameter(torch.randn(4)),
                shift=nn.Parameter(torch.randn(4)),
                head=nn.Linear(4, 2),
            ),
            (3,),
        ),
    ],
)

PRELU = grouped(
    "prelu",
    [
        Network("prelu-shared", between_linear(nn.PReLU), (3,)),
        Network("prelu-per-feature", between_linear(lambda: nn.PReLU(4)), (3,)),
        Network("prelu-per-channel", between(lambda: nn.PReLU(3), 3, 3, channels=3), (1, 3, 3)),
        Network("prelu-shared-image", between(nn.PReLU, 3, 3), (1, 3, 3)),
    ],
)

NETWORKS = [*LINEAR, *CONV, *TRANSPOSED, *EMBEDDING, *NORM, *PRELU]
