"""How weights are used: shared by several layers, computed from others, or without a module."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.curvature.zoo.network import Net, Network, grouped, parameter


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


TIED = grouped(
    "tied",
    [
        Network(
            "module-twice",
            lambda: Net(
                lambda net, x: net.head(torch.tanh(net.twice(torch.tanh(net.twice(x))))),
                twice=nn.Linear(3, 3),
                head=nn.Linear(3, 2),
            ),
            (3,),
        ),
        Network(
            "module-twice-in-sequential",
            lambda: nn.Sequential(layer := nn.Linear(3, 3), nn.Tanh(), layer, nn.Tanh()),
            (3,),
        ),
        Network(
            "conv-twice-at-two-sizes",
            lambda: Net(
                lambda net, x: torch.cat(
                    [net.conv(x).mean(2), torch.tanh(net.conv(F.avg_pool1d(x, 2))).mean(2)], 1
                ),
                conv=nn.Conv1d(2, 3, 3),
            ),
            (2, 8),
        ),
        Network(
            "siamese",
            lambda: Net(
                lambda net, x, z: (net.body(x) - net.body(z)).square() @ net.weight,
                body=nn.Sequential(nn.Linear(3, 4), nn.Tanh()),
                weight=parameter(4, 2),
            ),
            lambda n: (torch.randn(n, 3), torch.randn(n, 3)),
        ),
        Network(
            "activation-twice",
            lambda: nn.Sequential(
                nn.Linear(3, 4), act := nn.PReLU(), nn.Linear(4, 4), act, nn.Linear(4, 2)
            ),
            (3,),
        ),
        Network(
            "norm-twice",
            lambda: nn.Sequential(
                nn.Linear(3, 4), norm := nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 4), norm
            ),
            (3,),
        ),
        Network(
            "embedding-tied-to-linear",
            _tied_embedding,
            lambda n: torch.randint(0, 5, (n, 3)),
            "sequence",
        ),
        Network(
            "autoencoder-tied",
            lambda: Net(_tied_autoencoder, encoder=nn.Linear(4, 2), shift=parameter(4)),
            (4,),
        ),
        Network("convs-tied", _tied_convs, (2, 4)),
        Network("bias-tied", _tied_bias, (3,)),
        Network(
            "weight-by-module-and-by-hand",
            lambda: Net(
                lambda net, x: net.layer(x) + torch.tanh(x) @ net.layer.weight.T,
                layer=nn.Linear(3, 2),
            ),
            (3,),
        ),
    ],
)


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


COMPUTED = grouped(
    "computed-weight",
    [
        Network(
            "weight-norm",
            lambda: nn.Sequential(
                parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)
            ),
            (3,),
        ),
        Network(
            "weight-norm-conv",
            lambda: nn.Sequential(
                parametrizations.weight_norm(nn.Conv1d(2, 3, 2)), nn.Flatten(), nn.Linear(9, 2)
            ),
            (2, 4),
        ),
        Network(
            "spectral-norm",
            lambda: nn.Sequential(
                parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)
            ),
            (3,),
        ),
        Network(
            "orthogonal",
            lambda: nn.Sequential(
                parametrizations.orthogonal(nn.Linear(3, 3), orthogonal_map="cayley"),
                nn.Tanh(),
                nn.Linear(3, 2),
            ),
            (3,),
        ),
        Network("symmetric-weight", _symmetric, (3,)),
        Network("low-rank-adapter", _Lora, (4,)),
        Network(
            "standardised-weight",
            lambda: Net(
                lambda net, x: F.conv2d(
                    x,
                    (net.weight - net.weight.mean((1, 2, 3), keepdim=True))
                    / net.weight.std((1, 2, 3), keepdim=True),
                ),
                weight=parameter(2, 2, 2, 2),
            ),
            (2, 3, 3),
            "image",
        ),
        Network(
            "masked-weight",
            lambda: Net(
                lambda net, x: F.linear(x, net.layer.weight * net.mask, net.layer.bias),
                layer=nn.Linear(3, 3),
                mask=torch.ones(3, 3).tril(),
            ),
            (3,),
        ),
        Network(
            "weight-from-a-network",
            # No sample dimension passes the hyper network: its output serves all samples.
            lambda: Net(
                lambda net, x: F.linear(x, net.hyper(net.code).view(2, 3)),
                hyper=nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 6)),
                code=parameter(2),
            ),
            (3,),
        ),
        Network(
            "weight-from-each-sample",
            lambda: Net(
                lambda net, x: torch.einsum("noi,ni->no", net.hyper(x).view(-1, 2, 3), x),
                hyper=nn.Linear(3, 6),
            ),
            (3,),
        ),
    ],
)

BARE = grouped(
    "bare-parameter",
    [
        Network(
            "functional-calls",
            lambda: Net(
                lambda net, x: F.linear(torch.tanh(F.conv1d(x, net.w, net.b)).flatten(1), net.v),
                w=parameter(2, 2, 2),
                b=parameter(2),
                v=parameter(3, 6),
            ),
            (2, 4),
        ),
        Network(
            "functional-transposed",
            lambda: Net(
                lambda net, x: F.conv_transpose2d(x, net.w, net.b, stride=2),
                w=parameter(2, 1, 2, 2),
                b=parameter(1),
            ),
            (2, 2, 2),
            "image",
        ),
        Network(
            "matrix-product",
            lambda: Net(
                lambda net, x: torch.tanh(x @ net.w) @ net.v, w=parameter(3, 4), v=parameter(4, 2)
            ),
            (3,),
        ),
        Network(
            "matrix-product-from-the-left",
            lambda: Net(
                lambda net, x: net.w @ torch.tanh(x @ net.v), w=parameter(2, 4), v=parameter(3, 2)
            ),
            (4, 3),
            "sequence",
        ),
        Network(
            "addmm",
            lambda: Net(
                lambda net, x: torch.addmm(net.b, torch.tanh(x), net.w),
                w=parameter(3, 4),
                b=parameter(4),
            ),
            (3,),
        ),
        Network(
            "einsum-weight",
            lambda: Net(
                lambda net, x: torch.einsum("nti,hio,nto->nh", x, net.w, torch.tanh(x)),
                w=parameter(2, 3, 3),
            ),
            (4, 3),
        ),
        Network(
            "bare-bias",
            lambda: Net(
                lambda net, x: net.head(torch.tanh(net.stem(x) + net.shift)),
                stem=nn.Linear(3, 4, bias=False),
                shift=parameter(4),
                head=nn.Linear(4, 2),
            ),
            (3,),
        ),
        Network(
            "bare-bias-image",
            lambda: Net(
                lambda net, x: net.conv(torch.tanh(x + net.shift)),
                shift=parameter(2, 1, 1),
                conv=nn.Conv2d(2, 2, 2),
            ),
            (2, 3, 3),
            "image",
        ),
        Network(
            "learned-scale",
            lambda: Net(
                lambda net, x: net.scale * net.layer(x),
                scale=nn.Parameter(torch.tensor(1.5)),
                layer=nn.Linear(3, 2),
            ),
            (3,),
        ),
        Network(
            "layer-scale",
            lambda: Net(
                lambda net, x: (h := net.stem(x)) + net.scale * torch.tanh(net.body(h)),
                stem=nn.Linear(3, 4),
                scale=parameter(4),
                body=nn.Linear(4, 4),
            ),
            (3,),
        ),
        Network(
            "scalar-temperature",
            lambda: Net(
                lambda net, x: net.layer(x) / net.temperature.exp(),
                layer=nn.Linear(3, 2),
                temperature=nn.Parameter(torch.zeros(1)),
            ),
            (3,),
        ),
        Network(
            "learned-exponent",
            lambda: Net(
                lambda net, x: net.layer(x).square().add(0.5).pow(net.power),
                layer=nn.Linear(3, 2),
                power=parameter(2),
            ),
            (3,),
        ),
        Network(
            "cosine-classifier",
            lambda: Net(
                lambda net, x: (
                    3.0
                    * F.linear(
                        F.normalize(torch.tanh(net.stem(x)), dim=1), F.normalize(net.w, dim=1)
                    )
                ),
                stem=nn.Linear(3, 4),
                w=parameter(3, 4),
            ),
            (3,),
        ),
        Network(
            "prototypes",
            lambda: Net(
                lambda net, x: -torch.cdist(torch.tanh(net.stem(x)), net.centres).square(),
                stem=nn.Linear(3, 2),
                centres=parameter(3, 2),
            ),
            (3,),
        ),
        Network(
            "only-bias",
            lambda: Net(lambda net, x: x + net.shift, shift=parameter(3)),
            (3,),
        ),
        Network(
            "parameter-list",
            lambda: Net(
                lambda net, x: torch.tanh(x @ net.weights[0]) @ net.weights[1],
                weights=nn.ParameterList([parameter(3, 4), parameter(4, 2)]),
            ),
            (3,),
        ),
        Network(
            "parameter-not-used",
            lambda: Net(lambda net, x: net.layer(x), layer=nn.Linear(3, 2), idle=parameter(2, 2)),
            (3,),
        ),
        Network(
            "output-half-constant",
            lambda: Net(lambda net, x: torch.cat([net.layer(x), x], 1), layer=nn.Linear(3, 2)),
            (3,),
        ),
        Network(
            "expanded-parameter",
            lambda: Net(
                lambda net, x: net.head(
                    torch.cat([net.token.expand(len(x), 1, 3), x], 1).flatten(1)
                ),
                token=parameter(1, 1, 3),
                head=nn.Linear(9, 2),
            ),
            (2, 3),
        ),
    ],
)

NETWORKS = [*TIED, *COMPUTED, *BARE]
