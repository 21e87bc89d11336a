"""Priors: what users give, groups, initialisers, normalised weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace import normalised_groups
from lapkernels.laplace.prior import resolve_prior


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("given", "groups"),
    [
        (2.0, {"": ("0.weight", "0.bias", "2.weight", "2.bias")}),
        ("layer", {"0": ("0.weight", "0.bias"), "2": ("2.weight", "2.bias")}),
        ("parameter", {n: (n,) for n in ("0.weight", "0.bias", "2.weight", "2.bias")}),
        ({"0": 1.0, "2.weight": 3.0, "2.bias": 5.0},
         {"0": ("0.weight", "0.bias"), "2.weight": ("2.weight",), "2.bias": ("2.bias",)}),
    ],
)  # fmt: skip
def test_groups(given: Any, groups: dict[str, tuple[str, ...]]) -> None:
    assert resolve_prior(given, parameters(model())).groups == groups


def test_entries_and_tensors() -> None:
    found = resolve_prior("entry", parameters(model())).precision
    assert found["0.weight"].shape == (4, 3)
    given = {"0": 1.0, "2.weight": torch.rand(2, 4) + 1, "2.bias": 2.0}
    found = resolve_prior(given, parameters(model())).precision
    torch.testing.assert_close(found["2.weight"].float(), given["2.weight"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (0.0, "positive finite"),
        (float("nan"), "positive finite"),
        ("tree", "prior='tree'"),
        (torch.ones(3), r"precision of all parameters has shape \(3,\), but is shared"),
        ({"0": 1.0}, "no precision for"),
        ({"0": 1.0, "2": 1.0, "7": 1.0}, "names no parameter"),
        ({"0": 1.0, "2": 1.0, "2.bias": 1.0}, "two groups"),
        ({"0": 1.0, "2.bias": 1.0, "2.weight": torch.ones(3)}, "has shape"),
    ],
)
def test_refusals(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_prior(given, parameters(model()))


def test_initialiser() -> None:
    net = nn.Sequential(nn.Linear(12, 3), nn.LayerNorm(3), nn.Conv1d(4, 2, 3))
    state = torch.random.get_rng_state()
    found = lk.Prior.from_initialiser(net, constant=7.0).precision
    assert torch.equal(state, torch.random.get_rng_state())
    # torch's default is uniform in ±1/sqrt(fan in), of variance 1 / (3 fan in).
    for name, fan in (("0.weight", 12), ("0.bias", 12), ("2.weight", 12), ("2.bias", 12)):
        assert float(found[name]) == pytest.approx(3 * fan, rel=0.05)
    assert float(found["1.weight"]) == 7
    lk.Laplace(nn.Sequential(net[0]), prior=lk.Prior.from_initialiser(nn.Sequential(net[0])))


class Normed(nn.Module):
    """Two convolutions before norms, one in a residual branch, and a head."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = norm(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm2 = norm(4)
        self.free = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x)).tanh()
        h = h + self.norm2(self.second(h))
        h = h + self.free(h)
        return self.head(h.mean((2, 3)))


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d, lambda c: nn.GroupNorm(2, c), lambda c: nn.GroupNorm(1, c)]
)
def test_normalised_groups(norm: Any) -> None:
    net = Normed(norm).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = normalised_groups(net, torch.randn(5, 2, 6, 6))
    assert found == {"first": ("first.weight", "first.bias"), "second": ("second.weight",)}
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not net.training
    prior = lk.Prior.normalised(net, torch.randn(5, 2, 6, 6))
    assert set(prior.groups) == {"first", "second", "rest"}
    assert "head.weight" in prior.groups["rest"] and "norm.weight" in prior.groups["rest"]


class Stream(nn.Module):
    """x + branch(x), the branch with its norm first."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.branch = nn.Sequential(norm(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Encoder(nn.Module):
    """A transformer with norms first and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.places = nn.Parameter(torch.randn(5, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(x) + self.places)[:, 0])


def test_layers_that_add_to_a_stream_before_a_norm_are_scale_free_together() -> None:
    torch.manual_seed(0)
    for norm in (nn.BatchNorm2d, lambda c: nn.GroupNorm(2, c)):
        first, head = nn.Conv2d(2, 4, 3, bias=False), nn.Linear(4 * 16, 3)
        stream = (Stream(norm), Stream(norm), norm(4), nn.ReLU(), nn.Flatten())
        net = nn.Sequential(first, *stream, head).eval()
        found = normalised_groups(net, torch.randn(6, 2, 6, 6))
        names = ("0.weight", "1.branch.2.weight", "2.branch.2.weight")
        assert found == {"0.weight and 2 more": names}
    (group,) = normalised_groups(Encoder().eval(), torch.randint(11, (6, 5))).values()
    layers = [f"body.layers.{n}.{own}" for n in (0, 1) for own in ("self_attn.out_proj", "linear2")]
    added = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    assert set(group) == {"embedding.weight", "places", *added}


def test_no_normalised_groups() -> None:
    assert normalised_groups(model(), torch.randn(4, 3)) == {}
    with pytest.raises(ValueError, match="at least two"):
        normalised_groups(model(), torch.randn(1, 3))
