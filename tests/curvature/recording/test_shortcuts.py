"""Functions recorded at once give what watching every op gives, and what they miss is watched."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lapkernels.curvature.data.batches import Batch
from lapkernels.curvature.data.contents import Contents, parameters_of
from lapkernels.curvature.recording.recorder import Recorder
from lapkernels.curvature.recording.run import record
from lapkernels.curvature.recording.run_model import Subject
from lapkernels.curvature.recording.torch_functions import FUNCTIONS
from tests.curvature.check import assert_same, diagonals
from tests.curvature.recording.test_zoo import watched
from tests.curvature.zoo import Net


def subject_of(model: nn.Module) -> Subject:
    """A model with all its parameters chosen."""
    contents = Contents.of(model)
    return Subject.of(contents, parameters_of(contents, None))


def trace(model: nn.Module, x: Any) -> Subject:
    """Record a pass; the subject says afterwards whether it had to be watched."""
    subject = subject_of(model)
    record(subject, Batch(x if isinstance(x, tuple) else (x,), {}, None))
    return subject


CALLS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "linear": lambda net, x: F.linear(x, net.weight, net.bias),
    "linear of sequences": lambda net, x: F.linear(x.unsqueeze(1).tanh(), net.weight)[:, 0],
    "linear, samples inside": lambda net, x: (
        net.first(torch.stack([x, x.sin()])).transpose(0, 1).flatten(1)
    ),
    "relu": lambda net, x: F.relu(net.first(x)),
    "leaky_relu": lambda net, x: F.leaky_relu(net.first(x), 0.3),
    "elu": lambda net, x: F.elu(net.first(x), 0.7),
    "hardtanh": lambda net, x: F.hardtanh(net.first(x), -0.5, 0.7),
    "relu6": lambda net, x: F.relu6(5 * net.first(x)),
    "hardswish": lambda net, x: F.hardswish(net.first(x)),
    "hardsigmoid": lambda net, x: F.hardsigmoid(net.first(x)),
    "mish": lambda net, x: F.mish(net.first(x)),
    "selu": lambda net, x: F.selu(net.first(x)),
    "celu": lambda net, x: F.celu(net.first(x), alpha=0.7),
    "clamp": lambda net, x: net.first(x).clamp(min=-0.2) + torch.clamp(net.first(x), max=0.3),
    "pow": lambda net, x: net.first(x) ** 2 + torch.pow(net.first(x), 3.0) + 2 ** net.first(x),
    "pad": lambda net, x: F.pad(net.first(x), (1, -1), value=2.0).tanh(),
    "circular": lambda net, x: F.pad(net.first(x), (1, 2), "circular").tanh(),
    "reflected": lambda net, x: F.pad(net.first(x), (1, 1), "reflect").tanh(),
    "sum": lambda net, x: net.first(x).sum(-1, keepdim=True) * net.bias,
    "group_norm": lambda net, x: F.group_norm(
        net.first(x).view(-1, 2, 2), 1, net.bias[:2], net.bias[2:]
    ).flatten(1),
    "adaptive, 1d": lambda net, x: F.adaptive_avg_pool1d(net.images(x).flatten(2), 1).flatten(1),
    "softplus": lambda net, x: F.softplus(net.first(x), 2.0),
    "gelu": lambda net, x: F.gelu(net.first(x), approximate="tanh"),
    "silu": lambda net, x: F.silu(net.first(x)),
    "softmax": lambda net, x: F.softmax(net.first(x), -1),
    "log_softmax": lambda net, x: F.log_softmax(net.first(x), dim=1),
    "sums": lambda net, x: (net.first(x) + 2) - net.bias * (3 * net.first(x)) / 4,
    "alpha": lambda net, x: torch.add(net.first(x), net.bias, alpha=0.5),
    "unary": lambda net, x: net.first(x).sin().exp().square().neg().abs().sqrt(),
    "matmul": lambda net, x: x @ net.weight.t(),
    "mean": lambda net, x: net.first(x).view(-1, 2, 2).mean(-1),
    "permute": lambda net, x: net.first(x).view(-1, 2, 2).permute(0, 2, 1).flatten(1).tanh(),
    "cat": lambda net, x: torch.cat([net.first(x), x * net.bias], 1),
    "stack": lambda net, x: torch.stack([net.first(x), x * net.bias], 1).flatten(1),
    "dropout": lambda net, x: F.dropout(net.first(x), training=False),
    "layer_norm": lambda net, x: F.layer_norm(net.first(x), (4,), net.bias, net.bias),
    "in place": lambda net, x: F.relu(net.first(x), inplace=True).mul_(net.bias),
    "written after": lambda net, x: _written_after(net.first(x)),
    "view written": lambda net, x: _view_written(net.first(x), net.bias),
    "max_pool2d": lambda net, x: F.max_pool2d(net.images(x), 2, 1).flatten(1),
    "avg_pool2d": lambda net, x: F.avg_pool2d(net.images(x), 2, padding=1).flatten(1),
    "adaptive": lambda net, x: F.adaptive_avg_pool2d(net.images(x), 1).flatten(1),
    "interpolate": lambda net, x: F.interpolate(net.images(x), scale_factor=1.5).flatten(1),
    "convolution": lambda net, x: F.conv2d(net.images(x), net.kernel, padding="same").flatten(1),
    "transposed": lambda net, x: F.conv_transpose2d(
        net.images(x), net.kernel, stride=2, output_padding=1
    ).flatten(1),
    "batch_norm": lambda net, x: F.batch_norm(
        net.images(x), net.mean, net.mean.exp(), net.bias[:1], net.bias[1:2]
    ).flatten(1),
    "attention": lambda net, x: _attended(net, x),
    "causal": lambda net, x: _attended(net, x, is_causal=True),
    "features apart": lambda net, x: _attended(net, x, turned=True),
    "masked": lambda net, x: _attended(net, x, attn_mask=torch.eye(2).bool(), scale=0.3),
    "embedding": lambda net, x: F.embedding((x > 0).long(), net.weight, -1).flatten(1),
}


def _attended(net: Any, x: Tensor, turned: bool = False, **options: Any) -> Tensor:
    """Attention with one head of two positions and two features."""
    q, k, v = (net.first(z).view(-1, 1, 2, 2) for z in (x, x.sin(), 2 * x))
    if turned:
        q, k, v = q.mT, k.mT, v.mT
    return F.scaled_dot_product_attention(q, k, v, **options).flatten(1)


def _written_after(z: Tensor) -> Tensor:
    """A rule's operand is overwritten after its result was made."""
    y = z.tanh()
    kept = y * y
    y.mul_(3.0)
    return kept + y


def _view_written(z: Tensor, bias: Tensor) -> Tensor:
    part = z[:, :2]
    part.mul_(bias[:2])
    return z.tanh()


class Model(nn.Module):
    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.bias = nn.Parameter(torch.randn(4))
        self.kernel = nn.Parameter(torch.randn(1, 1, 3, 3))
        self.register_buffer("mean", torch.randn(1))
        self.run = run

    def images(self, x: Tensor) -> Tensor:
        return self.first(x).view(-1, 1, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_as_watched(name: str) -> None:
    model, x = Model(CALLS[name]).double(), torch.randn(3, 4, dtype=torch.float64)
    assert not trace(model, x).watched
    found = diagonals(model, x)
    assert any(isinstance(value, Tensor) and value.any() for value in found.values())
    assert not {"exact", "approx"} & found.keys(), "refused"
    with watched():
        assert_same(found, diagonals(copy.deepcopy(model), x), 1e-12)


def test_known_functions_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("watched")

    monkeypatch.setattr(Recorder, "__torch_dispatch__", refuse)
    model = nn.Sequential(
        *(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout()),
        *(nn.Flatten(), nn.Linear(8, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2)),
    ).eval()
    assert not trace(model, torch.randn(2, 1, 6, 6)).watched


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x.tanh() * x


@torch.jit.script
def scripted_write(x: Tensor) -> None:
    x.mul_(2.0)


def _caught(net: Any, z: Tensor) -> Tensor:
    y = scripted(z)
    try:
        return y * 2.0
    except RuntimeError:
        return z


UNSEEN: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "script": lambda net, z: scripted(z) + 1.0,
    "script last": lambda net, z: scripted(z),
    "script that writes": lambda net, z: (y := z * 1.0, scripted_write(y), y.sin())[-1],
    "error caught": _caught,
    "attribute": lambda net, z: z * net.constant,
    "vmap": lambda net, z: torch.func.vmap(lambda row: row * net.b)(z),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("name", UNSEEN)
def test_what_is_missed_is_watched(name: str) -> None:
    run = UNSEEN[name]
    model = Net(lambda net, x: net.last(run(net, net.first(x))))
    model.first, model.last, model.b = nn.Linear(3, 3), nn.Linear(3, 2), nn.Parameter(torch.rand(3))
    model.constant = torch.randn(3).double()
    model, x = model.double(), torch.randn(4, 3, dtype=torch.float64)
    assert trace(model, x).watched
    found = diagonals(model, x, methods=["exact"])
    with watched():
        assert_same(found, diagonals(copy.deepcopy(model), x, methods=["exact"]))


def test_every_function_has_a_call() -> None:
    """The functions of the table that calls above name, by their op."""
    named = {function.name for function in FUNCTIONS.values()}
    seen: set[str] = set()
    for run in CALLS.values():
        model, x = Model(run), torch.randn(3, 4)
        subject = subject_of(model)
        seen |= {node.name for node in record(subject, Batch((x,), {}, None)).nodes}
    # Dropout in eval mode is no op, and a contiguous tensor is its own copy.
    quick = {"aten::alias", "aten::clone", "aten::cos", "aten::log", "aten::rsqrt"}
    quick |= {"aten::reciprocal", "aten::sigmoid"}
    # Recurrent layers have tests of their own.
    quick |= {name for name in named if name.startswith("lapkernels::")}
    assert named - seen <= quick
