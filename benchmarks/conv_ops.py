"""The ops on a convolution, swept over channels, resolution and columns, and 3c3d's layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from benchmarks.registry import Family, random, register
from lapkernels import ops

# Compared with the largest entry of a float64 result. Loose enough for plain float32 summation:
# torch's own weight gradient is off by 1e-4 after the 262144 terms of 256x256 images. Refusing it
# would leave a slower composition to compare with. A missing term or factor is off by far more.
TOLERANCE = 1e-3
# Cases above this many operations a call are left out: they only make the sweep longer.
MAX_OPERATIONS = 5e10


@dataclass(frozen=True)
class ConvSize:
    """A square convolution with stride 1 and how much data goes through it."""

    inputs: int
    outputs: int
    kernel: int
    padding: int
    resolution: int
    samples: int
    columns: int
    layer: str = ""

    @property
    def geometry(self) -> ops.Geometry:
        return ops.Geometry.conv(self.kernel, padding=self.padding)

    @property
    def side(self) -> int:
        """Resolution of the output."""
        return self.resolution + 2 * self.padding - self.kernel + 1

    @property
    def operations(self) -> float:
        weights = self.outputs * self.inputs * self.kernel**2
        return 2.0 * self.columns * self.samples * self.side**2 * weights

    def __str__(self) -> str:
        return f"{self.layer or f'c{self.inputs}'}-r{self.resolution}-v{self.columns}"


def _sweep(*columns: int) -> list[ConvSize]:
    squares = [
        ConvSize(channels, channels, 3, 1, resolution, samples=4, columns=v)
        for v in columns
        for channels in (1, 3, 4, 8, 16, 32, 64)
        for resolution in (32, 64, 128, 256)
    ]
    layers = [
        size
        for v in columns
        for size in (
            ConvSize(3, 64, 5, 0, 32, samples=16, columns=v, layer="3c3d.conv1"),
            ConvSize(64, 96, 3, 0, 14, samples=16, columns=v, layer="3c3d.conv2"),
            ConvSize(96, 128, 3, 1, 6, samples=16, columns=v, layer="3c3d.conv3"),
        )
    ]
    return [size for size in layers + squares if size.operations <= MAX_OPERATIONS]


ONE_COLUMN = _sweep(1)
COLUMNS = _sweep(1, 9)
QUICK = ConvSize(3, 4, 3, 1, 16, samples=2, columns=3)


def _weight_shape(size: ConvSize) -> tuple[int, ...]:
    return (size.outputs, size.inputs, size.kernel, size.kernel)


def _input(size: ConvSize) -> tuple[int, ...]:
    return (size.samples, size.inputs, size.resolution, size.resolution)


def _output(size: ConvSize) -> tuple[int, ...]:
    return (size.samples, size.outputs, size.side, size.side)


def _padding(geometry: ops.Geometry) -> int:
    """Padding on every side: all kernels here are square."""
    return geometry.padding[0][0]


def _unfold(x: Tensor, geometry: ops.Geometry) -> Tensor:
    """X [N, I * K, T]."""
    return F.unfold(x, geometry.kernel_size, padding=_padding(geometry))


# Squared-kernel convolution with respect to the input, with ReLU's derivative.


def _make_squared_input(size: ConvSize, device: torch.device) -> tuple[Any, ...]:
    m, weight, z = random(0, _output(size), _weight_shape(size), _input(size), device=device)
    return m.abs(), weight, z, size.geometry


def _squared_input_oracle(m: Tensor, weight: Tensor, z: Tensor, geometry: ops.Geometry) -> Tensor:
    square = weight.double().square()
    return F.conv_transpose2d(m.double(), square, padding=_padding(geometry)) * (z > 0)


squared_conv_input = register(
    Family(
        "squared_conv_input",
        ONE_COLUMN,
        QUICK,
        _make_squared_input,
        _squared_input_oracle,
        TOLERANCE,
    )
)


@squared_conv_input.method("lapkernels", "ours")
def _(m: Tensor, weight: Tensor, z: Tensor, geometry: ops.Geometry) -> Tensor:
    size = z.shape[2:]
    return ops.squared_conv_input(m, weight, size, geometry, z=z, activation="relu")


@squared_conv_input.method("conv_transpose2d")
def _(m: Tensor, weight: Tensor, z: Tensor, geometry: ops.Geometry) -> Tensor:
    value = F.conv_transpose2d(m, weight.square(), padding=_padding(geometry))
    return torch.ops.aten.threshold_backward(value, z, 0)


@squared_conv_input.method("convolution_backward")
def _(m: Tensor, weight: Tensor, z: Tensor, geometry: ops.Geometry) -> Tensor:
    value = _convolution_backward(m, z, weight.square(), geometry, [True, False, False])[0]
    return torch.ops.aten.threshold_backward(value, z, 0)


def _convolution_backward(
    m: Tensor, x: Tensor, weight: Tensor, geometry: ops.Geometry, mask: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    ones, padding = [1, 1], [_padding(geometry)] * 2
    return torch.ops.aten.convolution_backward(
        m, x, weight, None, ones, padding, ones, False, [0, 0], 1, mask
    )


# Squared-kernel convolution with respect to the weight.


def _make_squared_weight(size: ConvSize, device: torch.device) -> tuple[Any, ...]:
    m, x = random(0, _output(size), _input(size), device=device)
    return m.abs(), x, size.geometry


def _squared_weight_oracle(m: Tensor, x: Tensor, geometry: ops.Geometry) -> Tensor:
    shape = (m.shape[1], x.shape[1], *geometry.kernel_size)
    square = x.double().square()
    return conv2d_weight(square, shape, m.double(), padding=_padding(geometry))


squared_conv_weight = register(
    Family(
        "squared_conv_weight",
        ONE_COLUMN,
        QUICK,
        _make_squared_weight,
        _squared_weight_oracle,
        TOLERANCE,
    )
)


@squared_conv_weight.method("lapkernels", "ours")
def _(m: Tensor, x: Tensor, geometry: ops.Geometry) -> Tensor:
    return ops.squared_conv_weight(m, x, geometry)


@squared_conv_weight.method("convolution_backward")
def _(m: Tensor, x: Tensor, geometry: ops.Geometry) -> Tensor:
    weight = x.new_empty(m.shape[1], x.shape[1], *geometry.kernel_size)
    return _convolution_backward(m, x.square(), weight, geometry, [False, True, False])[1]


@squared_conv_weight.method("unfold, einsum")
def _(m: Tensor, x: Tensor, geometry: ops.Geometry) -> Tensor:
    value = torch.einsum("nol,nkl->ok", m.flatten(2), _unfold(x.square(), geometry))
    return value.view(m.shape[1], x.shape[1], *geometry.kernel_size)


# Sum of squared Jacobian columns.


def _make_jacobian(size: ConvSize, device: torch.device) -> tuple[Any, ...]:
    s, x = random(0, (size.columns, *_output(size)), _input(size), device=device)
    return s, x, size.geometry


def _double_jacobian(s: Tensor, x: Tensor, geometry: ops.Geometry, n: int) -> Tensor:
    """G [V, O, I, k, k] of sample ``n`` in float64, by the library's weight gradient."""
    shape = (s.shape[2], x.shape[1], *geometry.kernel_size)
    columns = [
        conv2d_weight(
            x[n : n + 1].double(), shape, s[v, n : n + 1].double(), padding=_padding(geometry)
        )
        for v in range(s.shape[0])
    ]
    return torch.stack(columns)


def _jacobian_sum_oracle(s: Tensor, x: Tensor, geometry: ops.Geometry) -> Tensor:
    samples = [_double_jacobian(s, x, geometry, n).square().sum(0) for n in range(x.shape[0])]
    return torch.stack(samples).sum(0)


jacobian_squared_sum = register(
    Family("jacobian_squared_sum", COLUMNS, QUICK, _make_jacobian, _jacobian_sum_oracle, TOLERANCE)
)


@jacobian_squared_sum.method("lapkernels", "ours")
def _(s: Tensor, x: Tensor, geometry: ops.Geometry) -> Tensor:
    return ops.jacobian_squared_sum(s, x, geometry)


@jacobian_squared_sum.method("unfold, einsum")
def _(s: Tensor, x: Tensor, geometry: ops.Geometry) -> Tensor:
    value = _jacobian(s, x, geometry).square_().sum((0, 1))
    return value.view(s.shape[2], x.shape[1], *geometry.kernel_size)


@jacobian_squared_sum.method("unfold, matmul")
def _(s: Tensor, x: Tensor, geometry: ops.Geometry) -> Tensor:
    g = torch.matmul(s.flatten(3), _unfold(x, geometry).transpose(1, 2))
    value = g.square_().sum((0, 1))
    return value.view(s.shape[2], x.shape[1], *geometry.kernel_size)


@jacobian_squared_sum.method("unfold, loop over samples")
def _(s: Tensor, x: Tensor, geometry: ops.Geometry) -> Tensor:
    value = x.new_zeros(s.shape[2], x.shape[1] * geometry.kernel_size[0] ** 2)
    for n in range(x.shape[0]):
        g = s[:, n].flatten(2) @ _unfold(x[n : n + 1], geometry)[0].T
        value += g.square_().sum(0)
    return value.view(s.shape[2], x.shape[1], *geometry.kernel_size)


def _jacobian(s: Tensor, x: Tensor, geometry: ops.Geometry) -> Tensor:
    """G [V, N, O, I * K], materialised."""
    return torch.einsum("nkl,vnol->vnok", _unfold(x, geometry), s.flatten(3))


# Squared Jacobian columns weighted by a variance, and their inner products.


def _make_variance(size: ConvSize, device: torch.device) -> tuple[Any, ...]:
    shapes = ((size.columns, *_output(size)), _input(size), _weight_shape(size))
    s, x, variance = random(0, *shapes, device=device)
    return s, x, variance.abs(), size.geometry


def _jacobian_dot_oracle(s: Tensor, x: Tensor, variance: Tensor, geometry: ops.Geometry) -> Tensor:
    weight = variance.double().flatten()
    samples = [_double_jacobian(s, x, geometry, n).flatten(1) for n in range(x.shape[0])]
    return torch.stack([g.square() @ weight for g in samples])


jacobian_squared_dot = register(
    Family("jacobian_squared_dot", COLUMNS, QUICK, _make_variance, _jacobian_dot_oracle, TOLERANCE)
)


@jacobian_squared_dot.method("lapkernels", "ours")
def _(s: Tensor, x: Tensor, variance: Tensor, geometry: ops.Geometry) -> Tensor:
    return ops.jacobian_squared_dot(s, x, variance, geometry)


@jacobian_squared_dot.method("unfold, einsum")
def _(s: Tensor, x: Tensor, variance: Tensor, geometry: ops.Geometry) -> Tensor:
    g = _jacobian(s, x, geometry).flatten(2)
    return torch.einsum("vnp,p->nv", g.square_(), variance.flatten())


@jacobian_squared_dot.method("unfold, loop over samples")
def _(s: Tensor, x: Tensor, variance: Tensor, geometry: ops.Geometry) -> Tensor:
    weight = variance.flatten()
    rows = []
    for n in range(x.shape[0]):
        g = s[:, n].flatten(2) @ _unfold(x[n : n + 1], geometry)[0].T
        rows.append(g.square_().flatten(1) @ weight)
    return torch.stack(rows)


def _gram_oracle(s: Tensor, x: Tensor, variance: Tensor, geometry: ops.Geometry) -> Tensor:
    weight = variance.double().flatten()
    samples = [_double_jacobian(s, x, geometry, n).flatten(1) for n in range(x.shape[0])]
    return torch.stack([(g * weight) @ g.T for g in samples])


jacobian_gram = register(
    Family("jacobian_gram", COLUMNS, QUICK, _make_variance, _gram_oracle, TOLERANCE)
)


@jacobian_gram.method("lapkernels", "ours")
def _(s: Tensor, x: Tensor, variance: Tensor, geometry: ops.Geometry) -> Tensor:
    return ops.jacobian_gram(s, x, variance, geometry)


@jacobian_gram.method("unfold, einsum")
def _(s: Tensor, x: Tensor, variance: Tensor, geometry: ops.Geometry) -> Tensor:
    g = _jacobian(s, x, geometry).flatten(2)
    return torch.einsum("vnp,p,wnp->nvw", g, variance.flatten(), g)


@jacobian_gram.method("unfold, root of the variance, bmm")
def _(s: Tensor, x: Tensor, variance: Tensor, geometry: ops.Geometry) -> Tensor:
    g = _jacobian(s, x, geometry).flatten(2).mul_(variance.flatten().sqrt()).transpose(0, 1)
    return torch.bmm(g, g.mT)


# Kronecker factors.


def _make_input(size: ConvSize, device: torch.device) -> tuple[Any, ...]:
    return (*random(0, _input(size), device=device), size.geometry)


def _kronecker_input_oracle(x: Tensor, geometry: ops.Geometry) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for n in range(x.shape[0]):
        u = _unfold(x[n : n + 1].double(), geometry)[0]
        total = total + u @ u.T
    return total.unsqueeze(0)


kronecker_input = register(
    Family("kronecker_input", ONE_COLUMN, QUICK, _make_input, _kronecker_input_oracle, TOLERANCE)
)


@kronecker_input.method("lapkernels", "ours")
def _(x: Tensor, geometry: ops.Geometry) -> Tensor:
    return ops.kronecker_input(x, geometry)


@kronecker_input.method("unfold, one matmul")
def _(x: Tensor, geometry: ops.Geometry) -> Tensor:
    u = _unfold(x, geometry).transpose(0, 1).flatten(1)
    return (u @ u.T).unsqueeze(0)


@kronecker_input.method("unfold, bmm")
def _(x: Tensor, geometry: ops.Geometry) -> Tensor:
    u = _unfold(x, geometry)
    return torch.bmm(u, u.mT).sum(0, keepdim=True)


@kronecker_input.method("unfold, einsum")
def _(x: Tensor, geometry: ops.Geometry) -> Tensor:
    u = _unfold(x, geometry)
    return torch.einsum("nat,nbt->ab", u, u).unsqueeze(0)


def _make_output(size: ConvSize, device: torch.device) -> tuple[Any, ...]:
    return (*random(0, (size.columns, *_output(size)), device=device), size.geometry)


def _kronecker_output_oracle(s: Tensor, geometry: ops.Geometry) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=s.device)
    for column in s.flatten(0, 1).flatten(2):
        total = total + column.double() @ column.double().T
    return total.unsqueeze(0)


kronecker_output = register(
    Family("kronecker_output", COLUMNS, QUICK, _make_output, _kronecker_output_oracle, TOLERANCE)
)


@kronecker_output.method("lapkernels", "ours")
def _(s: Tensor, geometry: ops.Geometry) -> Tensor:
    return ops.kronecker_output(s, geometry)


@kronecker_output.method("one matmul")
def _(s: Tensor, geometry: ops.Geometry) -> Tensor:
    rows = s.movedim(2, 0).flatten(1)
    return (rows @ rows.T).unsqueeze(0)


@kronecker_output.method("bmm")
def _(s: Tensor, geometry: ops.Geometry) -> Tensor:
    rows = s.flatten(0, 1).flatten(2)
    return torch.bmm(rows, rows.mT).sum(0, keepdim=True)


@kronecker_output.method("einsum")
def _(s: Tensor, geometry: ops.Geometry) -> Tensor:
    rows = s.flatten(3)
    return torch.einsum("vnat,vnbt->ab", rows, rows).unsqueeze(0)
