"""Columns as windows: the same diagonal as from whole images, for every op that windows pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.passes.passes import passes
from lapkernels.likelihoods import Categorical, Gaussian
from lapkernels.ops.serving import forced
from lapkernels.rules.windows.window import Window
from tests.curvature import op_oracle, oracle


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.inner = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.last = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        return self.last(h + self.norm(self.inner(h)).relu())


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.low = nn.Conv2d(2, 3, 3, padding=1)
        self.up = nn.Conv2d(5, 2, 3, padding=1)
        self.head = nn.Conv2d(2, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.norm(self.down(x)).relu()
        low = self.low(nn.functional.max_pool2d(high, 2)).tanh()
        wide = nn.functional.interpolate(low, scale_factor=2)
        return self.head(self.up(torch.cat([x.new_empty(0), high, wide], 1)).relu())


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(1, 2, 3, padding=1)
        self.b = nn.Conv2d(1, 2, 3, padding=1)
        self.head = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x).sigmoid() * self.b(x) - 0.5 * self.a(x))


class Shortcut(nn.Module):
    """Some pixels come from the body alone, and some of those before it from nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 2, 3, padding=1)
        self.thin = nn.ConvTranspose2d(2, 2, (1, 2), stride=(3, 4), dilation=(1, 2))
        self.body = nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1)
        self.short = nn.ConvTranspose2d(2, 2, 1, stride=2, output_padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.thin(self.first(x).tanh()).tanh()
        return self.body(h) + self.short(h)


class Halves(nn.Module):
    """Two results of one op, each read by a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.a, self.b = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.stem(x).tanh().chunk(2, 1)
        return self.a(a) - self.b(b)


class Excited(nn.Module):
    """Channels that are scaled and shifted by numbers made of the whole image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.scale, self.shift = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).tanh()
        mean = h.mean((2, 3), keepdim=True)
        return self.head(h * self.scale(mean).sigmoid() + self.shift(mean))


def five() -> nn.Sequential:
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers, nn.Conv2d(2, 2, 3, padding=1))


def strided() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 3, padding=1)),
        *(nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1), nn.Tanh()),
        nn.Conv2d(4, 2, 3, padding=2, dilation=2),
    )


def one_dimension() -> nn.Module:
    layers = [nn.Conv1d(2, 4, 5), nn.ReLU(), nn.Conv1d(4, 4, 3, groups=2)]
    return nn.Sequential(*layers, nn.ConvTranspose1d(4, 2, 4, stride=3))


def gaps() -> nn.Module:
    layers = [nn.Conv1d(2, 2, 3, stride=2), nn.Tanh(), nn.ConvTranspose1d(2, 2, 1, 5, padding=1)]
    # Windows of the last layer lie wholly outside its input, too.
    return nn.Sequential(*layers, nn.Tanh(), nn.Conv1d(2, 2, 1, stride=3, padding=7))


def three_dimensions() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Conv3d(2, 1, (1, 2, 3), padding=1))


def no_activation() -> nn.Module:
    return nn.Sequential(*(nn.Conv2d(a, b, 3, padding=1) for a, b in ((1, 2), (2, 2), (2, 1))))


def pools() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), nn.Tanh()),
        *(nn.Conv2d(2, 2, 3, padding=1), nn.AvgPool2d(2), nn.Tanh(), nn.Upsample(scale_factor=2)),
        nn.Conv2d(2, 1, 3, padding=1),
    )


def uneven_upsampling() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Upsample(scale_factor=(2, 3))),
        *(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 1, dilation=2)),
        nn.Conv2d(2, 1, 3),
    )


def autoencoder() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(200, 2)),
        *(nn.Linear(2, 50), nn.Tanh(), nn.Unflatten(1, (2, 5, 5))),
        *(nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), nn.Tanh()),
        nn.Conv2d(3, 1, 3, padding=1),
    )


class Permuted(nn.Module):
    """An image with channels last and an activation behind the permutation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh()).permute(0, 2, 3, 1).sigmoid().flatten(1, 2)


class Cropped(nn.Module):
    """A padded and a cropped image are joined; the result is cropped, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(2, 3, 3, padding=2), nn.Conv2d(3, 3, 3)
        self.last = nn.Conv2d(6, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        inner = nn.functional.pad(self.inner(h).tanh(), (1, -1, 0, 2))
        both = torch.cat([h[:, :, 1:-1, :-2][:, :, : inner.shape[2]], inner[:, :, 1:-1]], 1)
        both = torch.cat([both[:, 1:4], both], 1)[:, :6]
        return self.last(both)[:, :, 1:, :-1].flip(3)


class Torus(nn.Module):
    """Circular padding with a skip, pooling, upsampling, and padding along one dimension only."""

    def __init__(self) -> None:
        super().__init__()
        circular: Any = {"padding": 1, "padding_mode": "circular"}
        self.first, self.low = nn.Conv2d(1, 2, 3, **circular), nn.Conv2d(2, 2, 3, **circular)
        self.norm = nn.BatchNorm2d(2)
        self.last, self.head = nn.Conv2d(4, 2, 3, **circular), nn.Conv2d(2, 1, (1, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x)).tanh()
        low = self.low(nn.functional.max_pool2d(h, 2)).tanh()
        wide = nn.functional.interpolate(low, scale_factor=2)
        both = self.last(torch.cat([h, wide], 1)).tanh()
        return self.head(nn.functional.pad(both, (1, 1, 0, 0), mode="circular"))


def reshuffled() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 2, 3, padding=1), nn.PixelUnshuffle(2), nn.Tanh(), nn.Conv2d(8, 4, 1)),
        *(nn.PixelShuffle(2), nn.Tanh(), nn.Conv2d(1, 4, 3, padding=1), nn.PixelShuffle(2)),
    )


def padded(mode: Any, pad: int = 1) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        size = 2 * pad + 1
        layers: list[nn.Module] = []
        for a, b, stride in ((2, 3, 1), (3, 2, 2), (2, 2, 1)):
            layers += [nn.Conv2d(a, b, size, stride, pad, padding_mode=mode), nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    return build


def far_padded() -> nn.Module:
    """Windows that lie in the padding alone, and uneven padding."""
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.ReflectionPad2d((4, 1, 0, 3))),
        *(nn.Conv2d(2, 2, 2, stride=(1, 2)), nn.Tanh(), nn.ReplicationPad2d((0, 4, 5, 2))),
        *(nn.Conv2d(2, 2, 3), nn.Flatten()),
    )


def interpolated(**options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Upsample(**options)),
            *(nn.Conv2d(2, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 1, 3, padding=1)),
        )

    return build


# Those whose convolutions all have windows.
LOCAL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "flattened": (lambda: nn.Sequential(*five(), nn.Flatten()), (2, 2, 9, 12)),
    "permuted": (Permuted, (2, 2, 7, 6)),
    "cropped": (Cropped, (1, 2, 12, 11)),
    "reshuffled": (reshuffled, (2, 2, 8, 10)),
    "reflect": (padded("reflect"), (2, 2, 12, 14)),
    "replicate": (padded("replicate", 2), (2, 2, 16, 17)),
    "circular": (padded("circular"), (2, 2, 12, 14)),
    "circular-wide": (padded("circular", 2), (1, 2, 24, 20)),
    "torus": (Torus, (2, 1, 16, 12)),
    "far-padded": (far_padded, (1, 1, 12, 22)),
    "bilinear": (interpolated(scale_factor=2, mode="bilinear"), (2, 1, 9, 8)),
    "bilinear-3": (interpolated(size=(18, 24), mode="bilinear"), (1, 1, 6, 8)),
    "bicubic": (interpolated(scale_factor=2, mode="bicubic"), (1, 1, 11, 12)),
}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "five": (five, (2, 2, 9, 7)),
    "strided": (strided, (2, 3, 10, 8)),
    "one-dimension": (one_dimension, (3, 2, 20)),
    "gaps": (gaps, (2, 2, 13)),
    "three-dimensions": (three_dimensions, (2, 1, 4, 5, 6)),
    "no-activation": (no_activation, (2, 1, 8, 9)),
    "residual": (Residual, (2, 2, 9, 9)),
    "shortcut": (Shortcut, (2, 2, 3, 4)),
    "gated": (Gated, (2, 1, 8, 7)),
    "halves": (Halves, (2, 1, 8, 7)),
    "excited": (Excited, (2, 1, 8, 7)),
    "u-net": (UNet, (2, 1, 8, 10)),
    "pools": (pools, (2, 1, 12, 14)),
    "uneven-upsampling": (uneven_upsampling, (2, 1, 6, 5)),
    "autoencoder": (autoencoder, (2, 1, 10, 10)),
    **LOCAL,
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    build, shape = NETWORKS[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().double().eval()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
        return model, torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(params=[20_000, None], ids=["small-tiles", "one-tile"])
def budget(request: pytest.FixtureRequest) -> int | None:
    return request.param


def assert_same(found: lk.Diagonal, expected: dict[str, Tensor]) -> None:
    for name, value in found.items():
        scale = float(expected[name].abs().max())
        assert float((value - expected[name]).abs().max()) <= 1e-12 * scale, name


def test_windows_give_the_exact_diagonal(
    network: tuple[nn.Module, Tensor], budget: int | None
) -> None:
    model, x = network
    jacobians, _ = oracle.jacobians(model, x)
    expected = {name: j.square().sum((0, 1)) for name, j in jacobians.items()}
    with forced(windows=True):
        assert_same(lk.diag(model, x, memory_budget=budget), expected)


def test_windows_give_the_exact_variances(
    network: tuple[nn.Module, Tensor], budget: int | None
) -> None:
    model, x = network
    jacobians, _ = oracle.jacobians(model, x)
    variance = {name: torch.rand_like(p) for name, p in model.named_parameters()}
    parts = [(j.square() * variance[name]).flatten(2).sum(2) for name, j in jacobians.items()]
    expected = torch.stack(parts).sum(0)  # [N, D]
    chosen = torch.randint(expected.shape[1], (len(x), 17))
    with forced(windows=True):
        found = lk.predictive_variance(model, x, variance, memory_budget=budget)
        some = lk.predictive_variance(model, x, variance, outputs=chosen, memory_budget=budget)
        none = lk.predictive_variance(model, x, variance, outputs=chosen[:, :0])
    assert found.shape == model(x).shape and none.shape == (len(x), 0)
    torch.testing.assert_close(found.flatten(1), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(some, expected.gather(1, chosen), rtol=1e-12, atol=0)


@pytest.mark.parametrize("threshold", [40, 130, 10**6])
def test_mixed_takes_windows(
    network: tuple[nn.Module, Tensor], budget: int | None, threshold: int
) -> None:
    model, x = network
    options = {"method": "mixed", "threshold": threshold, "memory_budget": budget}
    with forced(windows=False, compressed=False):
        plain = lk.diag(model, x, **options)
    with forced(windows=True, compressed=False):
        assert_same(lk.diag(model, x, **options), dict(plain))


def test_mixed_leaves_windows_where_values_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of 200, 50, 50 and 200 features: columns from the third to the first."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 2, 3, 2, 1), nn.Tanh()),
        *(nn.Conv2d(2, 2, 3, padding=1), nn.Upsample(scale_factor=2), nn.Conv2d(2, 2, 1)),
    ).double()
    x = torch.randn(3, 1, 10, 10, dtype=torch.float64)
    ends: list[tuple[int, ...]] = []
    squares = Window.squares

    def noted(window: Window, size: Sequence[int]) -> Tensor:
        ends.append(tuple(size))
        return squares(window, size)

    monkeypatch.setattr(Window, "squares", noted)
    expected = op_oracle.mixed_diagonal(model, x, torch.zeros(3, 2, 10, 10), threshold=60)
    with forced(windows=True):
        assert_same(lk.diag(model, x, method="mixed", threshold=60), expected)
    assert set(ends) == {(10, 10)}


@pytest.mark.parametrize(
    ("build", "likelihood"),
    [(five, "bernoulli"), (five, "categorical"), (no_activation, "bernoulli")],
)
def test_windows_of_other_likelihoods(build: Callable[[], nn.Module], likelihood: str) -> None:
    model = build().double()
    x = torch.randn(2, 2 if build is five else 1, 7, 6, dtype=torch.float64)
    with forced(windows=False, compressed=False):
        plain = lk.diag(model, x, likelihood)
    with forced(windows=True):
        assert_same(lk.diag(model, x, likelihood), dict(plain))


@pytest.mark.parametrize("build, size", [(five, (6, 6)), (Shortcut, (2, 3))])
def test_kronecker_factors_and_blocks_take_windows_too(
    build: Callable[[], nn.Module], size: tuple[int, int]
) -> None:
    model, x = build().double(), torch.randn(2, 2, *size, dtype=torch.float64)
    with forced(windows=False):
        plain = lk.kron(model, x, method="exact")
    with forced(windows=True):
        windowed = lk.kron(model, x, method="exact")
    for name in plain:
        torch.testing.assert_close(windowed.dense(name), plain.dense(name), rtol=1e-12, atol=1e-12)
    for by in ("kernel", "neuron", "parameter"):
        with forced(windows=False, compressed=False):
            blocks = lk.blocks(model, x, by=by)
        with forced(windows=True):
            found = lk.blocks(model, x, by=by)
        for name in blocks:
            torch.testing.assert_close(found[name], blocks[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOCAL)
def test_locality_survives(name: str) -> None:
    """Columns come as windows to every convolution."""
    build, shape = LOCAL[name]
    model, x = build().eval(), torch.randn(shape)
    _, found = passes(model, x)
    (one,) = found
    with forced(windows=True, compressed=False):
        columns = Gaussian().columns(one.prediction)
        (stage,) = one.plan_quadratic(columns, columns.local()).stages
    layers = [p for p, node in stage.passed(one.graph) if node.rule.uses]
    assert {stage.route(position) for position in layers} == {"windows"}


@pytest.mark.parametrize("dim", [1, 2, -1])
def test_classes_in_any_dimension(dim: int) -> None:
    """Rows of the result are sets of classes that come from one pixel, or not."""
    model, x = Permuted().double(), torch.randn(2, 2, 7, 6, dtype=torch.float64)
    likelihood = Categorical(dim=dim)
    with forced(windows=False, compressed=False):
        plain = lk.diag(model, x, likelihood)
    with forced(windows=True):
        assert_same(lk.diag(model, x, likelihood), dict(plain))


def test_windows_grow_by_the_receptive_field(capsys: pytest.CaptureFixture[str]) -> None:
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()]
    lk.diag(nn.Sequential(*layers[:-1]), torch.randn(1, 3, 32, 32), explain=True)
    table = capsys.readouterr().out
    for width in (1, 3, 5, 7, 9):
        assert f"3072 windows of {width}×{width} in 32×32" in table


def test_every_quantity_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = five(), torch.randn(2, 2, 12, 12)
    lk.kron(model, x, method="exact", explain=True)
    assert "288 windows of 1×1 in 12×12" in capsys.readouterr().out
    lk.blocks(model, x, method="exact", by="kernel", explain=True)
    assert "288 windows of 1×1 in 12×12" in capsys.readouterr().out
    lk.blocks(model, x, method="exact", by="layer", explain=True)
    assert "288 columns" in capsys.readouterr().out
    variance = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    lk.predictive_variance(model, x, variance, outputs=torch.arange(200), explain=True)
    assert "200 windows of 1×1 in 12×12" in capsys.readouterr().out
    lk.full(model, x, method="mc", samples=3, explain=True)
    assert "3 columns" in capsys.readouterr().out
