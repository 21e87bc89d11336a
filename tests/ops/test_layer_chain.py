"""Chains of layers in one call: each step against the reference, small integers and autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lapkernels import use_backend
from lapkernels.ops import ACTIVATIONS, ChainLayer, ChainSums, Geometry, layer_chain
from tests.ops.compare import assert_same, assert_same_bits

LINEAR = Geometry()
# By name: the geometries of a chain from its first layer to its last, channels, and its input.
CHAINS: dict[str, tuple[list[Geometry], list[int], tuple[int, ...]]] = {
    "linear": ([LINEAR] * 4, [19, 33, 1, 7, 40], ()),
    "wide": ([LINEAR], [70, 64], ()),
    "conv1d": ([Geometry.conv(3, 2, 1, dims=1), Geometry.conv(2, dims=1)], [3, 4, 2], (11,)),
    "conv2d": ([Geometry.conv(3, padding=1)] * 3, [3, 2, 5, 1], (7, 9)),
    "groups": ([Geometry.conv(3, 1, 2, 2, 2)] * 2, [4, 6, 2], (6, 5)),
    "transposed": (
        [Geometry.conv(3, 2, 1, transposed=True, output_padding=1), Geometry.conv(3)],
        *([4, 3, 2], (4, 5)),
    ),
    "conv3d": ([Geometry.conv((2, 1, 3), (1, 2, 1), (1, 0, 1))] * 2, [2, 3, 2], (4, 5, 6)),
    # More than the cache holds at a time, and channels enough for windows to be packed.
    "slabs": ([Geometry.conv(3, padding=1)], [2, 3], (150, 333)),
    "line": ([Geometry.conv((1, 3), 2, transposed=True)], [3, 2], (1, 30011)),
    "channels": ([Geometry.conv(3, padding=1)], [20, 18], (3, 2)),
    "channels transposed": ([Geometry.conv(3, 2, 1, transposed=True)], [18, 20], (2, 3)),
}  # fmt: skip
SAMPLES = 7


def draw(seed: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, tuple(shape), generator=generator).to(dtype)


def chain(
    name: str, dtype: torch.dtype, activation: str, samples: int = SAMPLES
) -> tuple[list[ChainLayer], Tensor]:
    """Layers from the last to the first, with small integers, and m at the result."""
    geometries, channels, size = CHAINS[name]
    layers: list[ChainLayer] = []
    for k, geometry in enumerate(geometries):
        inputs, outputs = channels[k : k + 2]
        pair = (inputs, outputs) if geometry.transposed else (outputs, inputs)
        shape = (pair[0], pair[1] // geometry.groups, *geometry.kernel_size)
        x = draw(10 * k, (samples, inputs, *size), dtype)
        # The first layer's input was made by nothing.
        z = None if k == 0 or activation == "identity" else draw(10 * k + 1, x.shape, dtype)
        kind = "identity" if z is None else activation
        weight = draw(10 * k + 2, shape, dtype)
        layers.append(ChainLayer(geometry, weight, x, z=z, activation=kind, slope=0.5))
        size = geometry.output_size(size)
    return layers[::-1], draw(5, (samples, channels[-1], *size), dtype).abs()


def every(sums: tuple[ChainSums, ChainSums | None]) -> list[Tensor]:
    parts = [part for part in sums if part is not None]
    found = [t for part in parts for t in (*part.weights, *part.biases, part.input)]
    return [tensor for tensor in found if tensor is not None]


def exact(
    layers: Sequence[ChainLayer], m: Tensor, g: Tensor | None, wants_input: bool
) -> list[Tensor]:
    def double(layer: ChainLayer) -> ChainLayer:
        z = None if layer.z is None else layer.z.double()
        return replace(layer, weight=layer.weight.double(), x=layer.x.double(), z=z)

    with use_backend("reference"):
        given = None if g is None else g.double()
        return every(
            layer_chain([*map(double, layers)], m.double(), given, wants_input=wants_input)
        )


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("activation", ["identity", "given", "relu"])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.usefixtures("kernel")
def test_small_integers(name: str, activation: str, gradient: bool, dtype: torch.dtype) -> None:
    layers, m = chain(name, dtype, activation)
    g = draw(6, m.shape, dtype) if gradient else None
    for wants_input in (True, False):
        found = every(layer_chain(layers, m, g, wants_input=wants_input))
        wanted = exact(layers, m, g, wants_input)
        assert len(found) == len(wanted) >= 2 * len(layers)
        # Beyond this float32 holds no longer every integer.
        largest = max(float(one.abs().max()) for one in wanted)
        for mine, known in zip(found, wanted, strict=True):
            if dtype is torch.float64 or largest < 2**24:
                assert_same(mine, known.to(dtype))
            else:
                torch.testing.assert_close(mine.double(), known, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "identity"])
@pytest.mark.parametrize("name", ["linear", "conv2d"])
@pytest.mark.usefixtures("kernel")
def test_every_activation(name: str, activation: str, dtype: torch.dtype) -> None:
    layers, m = chain(name, dtype, activation)
    g = draw(6, m.shape, dtype)
    eps = torch.finfo(dtype).eps
    pairs = zip(every(layer_chain(layers, m, g)), exact(layers, m, g, True), strict=True)
    for found, known in pairs:
        scale = float(known.abs().max())
        assert scale > 0
        torch.testing.assert_close(found.double(), known, rtol=0, atol=1e3 * eps * scale)


@pytest.mark.usefixtures("kernel")
def test_equals_autograd() -> None:
    """The gradient of a network, and its diagonal by squared weights and inputs."""
    layers, m = chain("conv2d", torch.float64, "identity")
    weights = [layer.weight.clone().requires_grad_() for layer in layers[::-1]]
    x = layers[-1].x
    made = []
    for weight in weights:
        made.append(x)
        x = torch.tanh(torch.nn.functional.conv2d(x, weight, padding=1) / 40)
    outcome = torch.atanh(x) * 40
    chained = [
        replace(
            layer,
            x=made[k].detach(),
            z=made[k].detach() if k else None,
            activation="tanh_of_result" if k else "identity",
        )
        for k, layer in zip((2, 1, 0), layers, strict=True)
    ]
    g = draw(6, m.shape, torch.float64)
    # tanh(z / 40) has another slope than tanh(z), by a number for each layer below.
    _, gradient = layer_chain(chained, m, g, wants_input=False)
    assert gradient is not None
    known = torch.autograd.grad(outcome, weights, g)[::-1]
    for k, (found, wanted) in enumerate(zip(gradient.weights, known, strict=True)):
        assert found is not None
        torch.testing.assert_close(found / 40**k, wanted)


@pytest.mark.usefixtures("kernel")
def test_samples_that_are_the_same() -> None:
    layers, m = chain("linear", torch.float64, "given")
    same = m[:1].expand(SAMPLES, -1)
    found = every(layer_chain(layers, same, same))
    for mine, known in zip(
        found, every(layer_chain(layers, same.clone(), same.clone())), strict=True
    ):
        assert_same(mine, known)


@pytest.mark.usefixtures("kernel")
def test_memory_formats() -> None:
    layers, m = chain("conv2d", torch.float64, "given")

    def last(tensor: Tensor) -> Tensor:
        return tensor.contiguous(memory_format=torch.channels_last)

    other = [replace(layer, x=last(layer.x), weight=last(layer.weight)) for layer in layers]
    found = every(layer_chain(other, last(m), last(m)))
    for mine, known in zip(found, every(layer_chain(layers, m, m)), strict=True):
        assert_same(mine, known)


@pytest.mark.usefixtures("kernel")
def test_only_what_is_wanted() -> None:
    layers, m = chain("conv2d", torch.float64, "relu")
    layers = [
        replace(layer, wants_weight=k != 1, wants_bias=k == 1) for k, layer in enumerate(layers)
    ]
    squares, gradient = layer_chain(layers, m, wants_input=False)
    assert gradient is None and squares.input is None
    assert [one is None for one in squares.weights] == [False, True, False]
    assert [one is None for one in squares.biases] == [True, False, True]


@pytest.mark.parametrize("samples", [1, 2, 6, 13, 64])
@pytest.mark.usefixtures("cpp")
def test_threads_and_rows(samples: int) -> None:
    layers, m = chain("linear", torch.float32, "tanh_of_result", samples)
    g = draw(6, m.shape, torch.float32)
    assert_same_bits(lambda: every(layer_chain(layers, m, g)))


@pytest.mark.usefixtures("cpp")
def test_what_does_not_fit_is_refused() -> None:
    layers, m = chain("conv2d", torch.float32, "relu")
    wrong = {
        "float64": ([replace(layers[0], x=layers[0].x.double()), *layers[1:]], m),
        "channels": ([replace(layers[0], weight=layers[0].weight[:, :1]), *layers[1:]], m),
        "samples": ([replace(layers[0], x=layers[0].x[:2]), *layers[1:]], m),
        "order": (layers[::-1], m),
        "dimensions": (layers, m[..., 0]),
        "slope": ([replace(layers[0], z=layers[0].x[:, :1]), *layers[1:]], m),
    }
    for given, start in wrong.values():
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            layer_chain(given, start)
