"""Linear layers by our kernel: exact for small integers; other tensors are left to torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lapkernels import use_backend
from lapkernels.kernels import NATIVE
from lapkernels.kernels.native import native_op
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
    weight.requires_grad_()
    assert linear(x, weight).grad_fn is not None
    with use_backend("reference"), torch.no_grad():
        assert torch.equal(linear(x, weight), F.linear(x, weight))


@pytest.mark.skipif(NATIVE.path is None, reason=f"no compiled library: {NATIVE.reason}")
def test_wrong_arguments_are_named() -> None:
    kernel = native_op("linear")
    assert kernel is not None
    out, x, weight, bias = torch.zeros(2, 3), torch.ones(2, 20), torch.ones(3, 20), torch.ones(3)
    kernel(out, x, weight, bias)
    assert bool((out == 21).all())
    for wrong, message in (
        ((out, x[:, :15], weight[:, :15], bias), "16 features"),
        ((out, x, weight[:, :17], bias), "weight"),
        ((out, x, weight, bias[:2]), "bias"),
        ((out[:1], x, weight, None), "out"),
        ((torch.zeros(3, 2).T, x, weight, None), "contiguous"),
        ((out, torch.ones(20, 2).T, weight, None), "dense"),
        ((out, x.double(), weight, None), "dtype"),
    ):
        with pytest.raises(RuntimeError, match=message):
            kernel(*wrong)
