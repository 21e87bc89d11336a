"""Networks written twice: as a module, and as a graph of small functions for the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.curvature.oracle import Stage


@dataclass(frozen=True)
class Dag:
    """A module and the same function as stages, which name the module's parameters."""

    module: nn.Module
    stages: list[Stage]
    x: Tensor

    @property
    def parameters(self) -> dict[str, Tensor]:
        return dict(self.module.named_parameters())


def _linear(name: str, entry: int) -> Stage:
    return Stage(F.linear, (entry,), (f"{name}.weight", f"{name}.bias"))


def _conv(name: str, entry: int, **options: int) -> Stage:
    def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        function = (F.conv1d, F.conv2d, F.conv3d)[weight.dim() - 3]
        return function(x, weight, bias, **options)

    return Stage(convolve, (entry,), (f"{name}.weight", f"{name}.bias"))


def _flatten(x: Tensor) -> Tensor:
    return x.flatten(1)


def single_linear() -> Dag:
    """One layer at one position: the diagonal is exact if the output Hessian is diagonal."""
    return Dag(nn.Sequential(nn.Linear(3, 4)), [_linear("0", 0)], torch.randn(3, 3))


class _Scale(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(features))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def elementwise_chain() -> Dag:
    """Every Jacobian is diagonal, so nothing is lost."""
    module = nn.Sequential(_Scale(4), nn.Tanh(), _Scale(4), nn.Softplus(), _Scale(4))
    stages = [
        Stage(torch.mul, (0,), ("0.scale",)),
        Stage(torch.tanh, (1,)),
        Stage(torch.mul, (2,), ("2.scale",)),
        Stage(F.softplus, (3,)),
        Stage(torch.mul, (4,), ("4.scale",)),
    ]
    return Dag(module, stages, torch.randn(3, 4))


def mlp() -> Dag:
    """Linear, tanh, linear, sigmoid, linear."""
    module = nn.Sequential(
        nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 2)
    )
    stages = [
        _linear("0", 0),
        Stage(torch.tanh, (1,)),
        _linear("2", 2),
        Stage(torch.sigmoid, (3,)),
        _linear("4", 4),
    ]
    return Dag(module, stages, torch.randn(4, 3))


def conv_chain() -> Dag:
    """Convolution, ReLU, max pooling, linear."""
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    )
    stages = [
        _conv("0", 0, padding=1),
        Stage(F.relu, (1,)),
        Stage(lambda x: F.max_pool2d(x, 2), (2,)),
        Stage(_flatten, (3,)),
        _linear("4", 4),
    ]
    return Dag(module, stages, torch.randn(3, 2, 4, 4))


def batch_norm_chain() -> Dag:
    """A strided grouped convolution, BatchNorm in eval mode, average pooling, an image out."""
    norm = nn.BatchNorm2d(4).eval()
    mean, variance = torch.randn(4), torch.rand(4) + 0.5
    norm.running_mean, norm.running_var = mean, variance
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, groups=2), norm, nn.AvgPool2d(2, 1), nn.SiLU()
    )

    def normalise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.batch_norm(x, mean.double(), variance.double(), weight, bias)

    stages = [
        _conv("0", 0, stride=2, groups=2),
        Stage(normalise, (1,), ("1.weight", "1.bias")),
        Stage(lambda x: F.avg_pool2d(x, 2, 1), (2,)),
        Stage(F.silu, (3,)),
    ]
    return Dag(module, stages, torch.randn(3, 2, 7, 7))


def transposed() -> Dag:
    """A decoder: linear, unflatten, transposed convolutions with stride, padding, dilation."""
    module = nn.Sequential(
        nn.Linear(2, 8),
        nn.Unflatten(1, (2, 2, 2)),
        nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
        nn.Softplus(),
        nn.ConvTranspose2d(3, 1, 2, dilation=2),
    )

    def up(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv_transpose2d(x, weight, bias, stride=2, padding=1, output_padding=1)

    def spread(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv_transpose2d(x, weight, bias, dilation=2)

    stages = [
        _linear("0", 0),
        Stage(lambda x: x.unflatten(1, (2, 2, 2)), (1,)),
        Stage(up, (2,), ("2.weight", "2.bias")),
        Stage(F.softplus, (3,)),
        Stage(spread, (4,), ("4.weight", "4.bias")),
    ]
    return Dag(module, stages, torch.randn(3, 2))


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 2, 3, padding=1)
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.second(torch.tanh(self.first(x)))
        return self.head(torch.sigmoid(x).mean((2, 3)))


def residual() -> Dag:
    """A skip around two convolutions, then a mean over positions."""
    stages = [
        _conv("first", 0, padding=1),
        Stage(torch.tanh, (1,)),
        _conv("second", 2, padding=1),
        Stage(torch.add, (0, 3)),
        Stage(torch.sigmoid, (4,)),
        Stage(lambda x: x.mean((2, 3)), (5,)),
        _linear("head", 6),
    ]
    return Dag(_Residual(), stages, torch.randn(3, 2, 4, 4))


class _InnerSkip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.stem(x))
        return self.head(h + torch.sigmoid(self.body(h)))


def inner_skip() -> Dag:
    """A value behind parameters is used twice: the two m add, without cross terms."""
    stages = [
        _linear("stem", 0),
        Stage(torch.tanh, (1,)),
        _linear("body", 2),
        Stage(torch.sigmoid, (3,)),
        Stage(torch.add, (2, 4)),
        _linear("head", 5),
    ]
    return Dag(_InnerSkip(), stages, torch.randn(3, 3))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 2, 3, padding=1)
        self.middle = nn.Conv2d(2, 3, 3, padding=1)
        self.up = nn.Conv2d(5, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.tanh(self.down(x))
        low = torch.tanh(self.middle(F.avg_pool2d(skip, 2)))
        return self.up(torch.cat([F.interpolate(low, scale_factor=2.0), skip], 1))


def u_net() -> Dag:
    """Pooling, nearest upsampling and a concatenated skip; an image out."""
    stages = [
        _conv("down", 0, padding=1),
        Stage(torch.tanh, (1,)),
        Stage(lambda x: F.avg_pool2d(x, 2), (2,)),
        _conv("middle", 3, padding=1),
        Stage(torch.tanh, (4,)),
        Stage(lambda x: F.interpolate(x, scale_factor=2.0), (5,)),
        Stage(lambda x, skip: torch.cat([x, skip], 1), (6, 2)),
        _conv("up", 7, padding=1),
    ]
    return Dag(_UNet(), stages, torch.randn(2, 1, 4, 4))


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.twice(torch.tanh(self.twice(x)))))


def tied() -> Dag:
    """A module called twice: contributions of both uses, without their cross terms."""
    stages = [
        _linear("twice", 0),
        Stage(torch.tanh, (1,)),
        _linear("twice", 2),
        Stage(torch.tanh, (3,)),
        _linear("head", 4),
    ]
    return Dag(_Tied(), stages, torch.randn(3, 4))


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.query = nn.Linear(4, 2)
        self.key = nn.Linear(4, 2)
        self.value = nn.Linear(4, 3)
        self.head = nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        scores = self.query(x) @ self.key(x).mT
        return self.head((scores.softmax(-1) @ self.value(x)).flatten(1))


def attention() -> Dag:
    """LayerNorm, then one head of softmax attention over three positions."""
    stages = [
        Stage(lambda x, w, b: F.layer_norm(x, (4,), w, b), (0,), ("norm.weight", "norm.bias")),
        _linear("query", 1),
        _linear("key", 1),
        _linear("value", 1),
        Stage(lambda q, k: q @ k.mT, (2, 3)),
        Stage(lambda s: s.softmax(-1), (5,)),
        Stage(torch.matmul, (6, 4)),
        Stage(_flatten, (7,)),
        _linear("head", 8),
    ]
    return Dag(_Attention(), stages, torch.randn(2, 3, 4))


class _Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(2, 3)
        self.value = nn.Linear(3, 4)
        self.gate = nn.Linear(3, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.value(x) * torch.sigmoid(self.gate(x)))


def gate() -> Dag:
    """A product of two branches."""
    stages = [
        _linear("stem", 0),
        _linear("value", 1),
        _linear("gate", 1),
        Stage(torch.sigmoid, (3,)),
        Stage(torch.mul, (2, 4)),
        _linear("head", 5),
    ]
    return Dag(_Gate(), stages, torch.randn(3, 2))


# Where a diagonal M loses nothing, for a likelihood whose output Hessian is diagonal.
EXACT: dict[str, Callable[[], Dag]] = {
    "single-linear": single_linear,
    "elementwise-chain": elementwise_chain,
}

DAGS: dict[str, Callable[[], Dag]] = EXACT | {
    "mlp": mlp,
    "conv-chain": conv_chain,
    "batch-norm-chain": batch_norm_chain,
    "transposed": transposed,
    "residual": residual,
    "inner-skip": inner_skip,
    "u-net": u_net,
    "tied": tied,
    "attention": attention,
    "gate": gate,
}


def make(name: str, seed: int = 0) -> Dag:
    """The network of that name, in float64 and eval mode, the same on every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        dag = DAGS[name]()
    return Dag(dag.module.double().eval(), dag.stages, dag.x.double())
