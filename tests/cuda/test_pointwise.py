"""The pointwise ops and those on parameter lists by their CUDA kernels, against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapkernels import ops, use_backend
from lapkernels.ops import ACTIVATIONS, Geometry
from tests.cuda.conftest import Target
from tests.cuda.precision import stored, summed_in
from tests.ops.compare import assert_within
from tests.ops.layouts import BUFFERS
from tests.ops.lists import count, many

SLOPE = 0.3
# A derivative takes an exponential or two, some products, and a difference from one.
ROUNDINGS = 16


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def slope_tolerance(m: Tensor, z: Tensor, activation: str, dtype: torch.dtype) -> Tensor:
    """phi' is a difference of numbers up to one, hence the one in its magnitude."""
    slope = ops.squared_derivative(torch.ones_like(z), z, activation, SLOPE).sqrt()
    return ROUNDINGS * torch.finfo(summed_in(dtype)).eps * m.abs() * (1 + slope).square()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", [1, 3, 1027])
def test_squared_derivative(activation: str, size: int, dtype: torch.dtype, target: Target) -> None:
    m, z = numbers(dtype, size), 2 * numbers(dtype, size, seed=1).abs()
    z[1::2] *= -1
    found = ops.squared_derivative(target.to(m), target.to(z), activation, SLOPE)
    with use_backend("reference"):
        m, z = m.double(), z.double()
        wanted = ops.squared_derivative(m, z, activation, SLOPE)
        tolerance = slope_tolerance(m, z, activation, dtype)
    assert_within(found.cpu(), wanted, stored(wanted, tolerance, dtype))


@pytest.mark.parametrize("buffer", BUFFERS)
def test_squared_derivative_accumulates_anywhere(buffer: str, target: Target) -> None:
    m, z = (target.to(numbers(torch.float64, 3, 5, seed=seed)) for seed in (0, 1))
    place = BUFFERS[buffer](m)
    place.view.fill_(4.0)
    ops.squared_derivative(m, z, "tanh", out=place.view, decay=0.5, scale=3.0)
    with use_backend("reference"):
        wanted = 2 + 3 * ops.squared_derivative(m, z, "tanh")
    assert torch.allclose(place.view, wanted, rtol=1e-14, atol=0)
    place.assert_untouched_outside()


@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_squared_conv_input_with_every_activation(activation: str, target: Target) -> None:
    geometry = Geometry.conv(3, padding=1)
    shapes = [(2, 5, 7, 6), (5, 18, 3, 3), (2, 18, 7, 6)]
    m, weight, z = (numbers(torch.float64, *shape, seed=s) for s, shape in enumerate(shapes))
    there = target.to(m), target.to(weight), target.to(z)
    found = ops.squared_conv_input(
        there[0], there[1], (7, 6), geometry, z=there[2], activation=activation, slope=SLOPE
    )
    with use_backend("reference"):
        plain = ops.squared_conv_input(m, weight, (7, 6), geometry)
        wanted = plain * ops.squared_derivative(torch.ones_like(z), z, activation, SLOPE)
        bound = ops.squared_conv_input(m.abs(), weight, (7, 6), geometry)
        tolerance = slope_tolerance(bound, z, activation, torch.float64)
    sums = torch.finfo(torch.float64).eps * 2 * weight.numel() * bound
    assert_within(found.cpu(), wanted, sums + tolerance)


def lists(dtype: torch.dtype, seed: int, positive: bool = False) -> list[Tensor]:
    """More parameters than one launch takes."""
    found = many(dtype, seed, positive)
    return [*found, *(found[0] + i for i in range(70))]


def full_lists(dtype: torch.dtype, seed: int) -> list[Tensor]:
    """The same without the empty ones: sums over those are the reference's."""
    return [tensor for tensor in lists(dtype, seed) if tensor.numel() > 0]


@pytest.mark.parametrize("name", ["gaussian_kl", "squared_gradient_sum"])
def test_sums_over_lists(name: str, dtype: torch.dtype, target: Target) -> None:
    a, b = full_lists(dtype, 1), [t / 2 for t in full_lists(dtype, 2)]
    if dtype == torch.float16:  # its largest number is 65504
        a, b = a[:6], b[:6]
    rest = (0.7,) if name == "gaussian_kl" else ()
    run = getattr(ops, name)
    found = run([target.to(t) for t in a], [target.to(t) for t in b], *rest)
    with use_backend("reference"):
        wide_a, wide_b = ([t.double() for t in group] for group in (a, b))
        wanted = run(wide_a, wide_b, *rest)
        # Terms of both signs: a bound on what they would be without one.
        bound = run([t.abs() for t in wide_a], [t.abs() for t in wide_b], *rest).abs()
    tolerance = torch.finfo(summed_in(dtype)).eps * 32 * (bound + 4 * count())
    assert_within(found.cpu(), wanted, stored(wanted, tolerance, dtype))


@pytest.mark.parametrize(("decay", "scale"), [(0.5, 3.0), (0.0, 1.0)])
def test_precision_update(decay: float, scale: float, dtype: torch.dtype, target: Target) -> None:
    h, d = ([target.to(t) for t in lists(dtype, seed)] for seed in (1, 2))
    before = [t.double().cpu().clone() for t in h]
    ops.precision_update(h, d, decay, scale)
    for found, old, add in zip(h, before, d, strict=True):
        wanted = decay * old + scale * add.double().cpu()
        bound = decay * old.abs() + scale * add.double().cpu().abs()
        tolerance = stored(wanted, 4 * torch.finfo(summed_in(dtype)).eps * bound, dtype)
        assert_within(found.cpu(), wanted, tolerance, empty=not wanted.any())


def test_sample_from_precision(dtype: torch.dtype, target: Target) -> None:
    noise, mean = ([target.to(t) for t in lists(dtype, seed)] for seed in (1, 2))
    h = [target.to(t) for t in lists(dtype, 3, positive=True)]
    before = [t.double().cpu().clone() for t in noise]
    torch.ops.lapkernels.sample_from_precision(noise, mean, h, 0.5, 2.0)
    for found, e, mu, precision in zip(noise, before, mean, h, strict=True):
        spread = 2 * e / (precision.double().cpu() + 0.5).sqrt()
        wanted = mu.double().cpu() + spread
        bound = mu.double().cpu().abs() + spread.abs()
        tolerance = stored(wanted, 8 * torch.finfo(summed_in(dtype)).eps * bound, dtype)
        assert_within(found.cpu(), wanted, tolerance, empty=not wanted.any())
