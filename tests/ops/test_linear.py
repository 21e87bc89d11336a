"""Linear layers by our kernel: exact for small integers; other tensors are left to torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels import use_backend
from lapkernels.ops.linear import LEAST, MOST_ROWS, linear
from tests.ops.compare import assert_same

# Rows, inputs and outputs around vectors, tiles and blocks.
SIZES = [(1, 784, 169), (3, 257, 512), (5, 16, 8192), (16, 512, 257), (MOST_ROWS, 1000, 133)]


def draw(seed: int, shape: tuple[int, ...], dtype: torch.dtype, integers: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if integers:
        return torch.randint(-3, 4, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator, dtype=dtype)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SIZES)
def test_small_integers(
    rows: int, inputs: int, outputs: int, with_bias: bool, dtype: torch.dtype
) -> None:
    assert inputs * outputs >= LEAST
    x, weight = draw(0, (rows, inputs), dtype), draw(1, (outputs, inputs), dtype)
    bias = draw(2, (outputs,), dtype) if with_bias else None
    found = linear(x, weight, bias)
    assert_same(
        found,
        F.linear(x.double(), weight.double(), None if bias is None else bias.double()).to(dtype),
    )
    assert found.any()


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding(dtype: torch.dtype) -> None:
    x, weight = draw(0, (7, 500), dtype, False), draw(1, (263, 500), dtype, False)
    exact = F.linear(x.double(), weight.double())
    largest = F.linear(x.double().abs(), weight.double().abs())
    error = (linear(x, weight).double() - exact).abs()
    assert bool((error <= 500 * torch.finfo(dtype).eps * largest).all())


@pytest.mark.usefixtures("cpp")
def test_layouts_threads_and_what_is_not_finite() -> None:
    x, weight = draw(0, (9, 300), torch.float32, False), draw(1, (440, 300), torch.float32, False)
    known = linear(x, weight)
    threads, found = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(linear(x, weight))
    torch.set_num_threads(threads)
    wide = torch.full((9, 400), torch.nan)
    wide[:, :300] = x
    found += [linear(wide[:, :300], weight), linear(torch.cat([x, x])[::2], weight)]
    for one in found[:-1]:
        assert torch.equal(one, known)
    assert torch.equal(found[-1][:4], known[::2][:4])
    x[4, 7] = torch.nan
    other = linear(x, weight)
    assert bool(other[4].isnan().all())
    assert torch.equal(other[[0, 1, 2, 3, 5, 6, 7, 8]], known[[0, 1, 2, 3, 5, 6, 7, 8]])


@pytest.mark.usefixtures("cpp")
def test_other_tensors_are_torchs() -> None:
    x, weight = draw(0, (3, 64), torch.float32, False), draw(1, (2048, 64), torch.float32, False)
    bias = torch.zeros(2048)
    for arguments in (
        (x.T.contiguous().T, weight, bias),
        (x.unsqueeze(0), weight, bias),
        (x, weight[:5], bias[:5]),
        (x[:0], weight, bias),
        (x.repeat(MOST_ROWS, 1), weight, bias),
        (x, weight, torch.zeros(1)),
    ):
        assert torch.equal(linear(*arguments), F.linear(*arguments))
    with pytest.raises(RuntimeError):
        linear(x[:, :60], weight)
    with use_backend("reference"), torch.no_grad():
        assert torch.equal(linear(x, weight), F.linear(x, weight))


@pytest.mark.usefixtures("cpp")
def test_gradients() -> None:
    x, weight = draw(0, (2, 512), torch.float64, False), draw(1, (256, 512), torch.float64, False)
    bias = draw(2, (256,), torch.float64, False)
    leaves = [one.requires_grad_() for one in (x, weight, bias)]
    found, known = linear(x, weight, bias), F.linear(x, weight, bias)
    assert "Linear" in type(found.grad_fn).__name__
    # Each result squared, so that a second derivative is no zero.
    for first, second in zip(
        *(torch.autograd.grad(y.square().sum(), leaves, create_graph=True) for y in (found, known)),
        strict=True,
    ):
        torch.testing.assert_close(first, second)
        twice = [
            torch.autograd.grad(one.square().sum(), x, retain_graph=True) for one in (first, second)
        ]
        torch.testing.assert_close(*twice)
    assert linear(x.detach(), weight.detach(), bias).requires_grad
