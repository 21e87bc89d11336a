"""Max pooling by our kernel is torch's, with its places, ties and NaNs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lapkernels import use_backend
from lapkernels.ops.max_pool import _output_size, max_pool2d

# Kernel, stride, padding, dilation.
WINDOWS = {
    "plain": ([2, 2], [2, 2], [0, 0], [1, 1]),
    "overlapping": ([3, 3], [2, 2], [1, 1], [1, 1]),
    "dense": ([3, 2], [1, 1], [1, 0], [1, 1]),
    "far": ([2, 3], [3, 4], [1, 1], [2, 1]),
    "dilated": ([3, 3], [2, 1], [1, 1], [2, 2]),
    "one": ([1, 1], [1, 1], [0, 0], [1, 1]),
}
SIZES = [(9, 9), (16, 33), (5, 70), (31, 6)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors go to the kernel too."""
    monkeypatch.setattr("lapkernels.ops.serving.POOLED", 1)


def draw(size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Few values, so that there are ties, with some that are not finite."""
    generator = torch.Generator().manual_seed(size[1])
    x = torch.randint(-3, 4, (2, 3, *size), generator=generator).to(dtype)
    places = torch.rand(x.shape, generator=generator)
    x[places < 0.02] = torch.nan
    x[places > 0.6] = -torch.inf
    x[(places > 0.58) & (places < 0.6)] = torch.inf
    return x


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.usefixtures("backend")
def test_equals_torch(
    name: str, size: tuple[int, int], ceil_mode: bool, dtype: torch.dtype
) -> None:
    x, windows = draw(size, dtype), WINDOWS[name]
    found = max_pool2d(x, *windows, ceil_mode)
    known = F.max_pool2d(x, *windows, ceil_mode, return_indices=True)
    assert found[0].shape == known[0].shape
    torch.testing.assert_close(found[0], known[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found[1], known[1])


@pytest.mark.usefixtures("cpp")
def test_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, 8, 9, generator=generator, dtype=torch.float64).requires_grad_()
    windows = WINDOWS["overlapping"]
    assert gradcheck(lambda x: max_pool2d(x, *windows, False)[0], (x,))
    assert gradgradcheck(lambda x: max_pool2d(x, *windows, False)[0], (x,))


def test_what_the_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    x, windows = torch.zeros(2, 3, 8, 9), WINDOWS["overlapping"]
    with use_backend("cpp"):
        assert _output_size(x, *windows, False) == (4, 5)
        assert _output_size(x.half(), *windows, False) is None
        assert _output_size(x.transpose(2, 3), *windows, False) is None
        assert _output_size(x[:0], *windows, False) is None
        assert _output_size(x[..., :6].contiguous(), *windows, False) is None
        assert _output_size(x, [3, 3], [2, 2], [2, 2], [1, 1], False) is None
    with use_backend("reference"):
        assert _output_size(x, *windows, False) is None
    monkeypatch.setattr("lapkernels.ops.serving.POOLED", x.numel() + 1)
    with use_backend("cpp"):
        assert _output_size(x, *windows, False) is None


@pytest.mark.usefixtures("cpp")
def test_what_torch_refuses_is_refused() -> None:
    x = torch.zeros(1, 1, 4, 4)
    for windows in (([5, 5], [1, 1], [0, 0], [1, 1]), ([3, 3], [1, 1], [2, 2], [1, 1])):
        with pytest.raises(RuntimeError):
            max_pool2d(x, *windows, False)


@pytest.mark.usefixtures("cpp")
def test_the_compiled_op_refuses_what_does_not_fit() -> None:
    pool = torch.ops.lapkernels_native.max_pool
    x, out = torch.zeros(1, 2, 6, 6), torch.zeros(1, 2, 3, 3)
    index = torch.zeros(1, 2, 3, 3, dtype=torch.int64)
    windows = ([2, 2], [2, 2], [0, 0], [1, 1])
    pool(out, index, x, *windows)
    with pytest.raises(RuntimeError, match="index"):
        pool(out, index.int(), x, *windows)
    with pytest.raises(RuntimeError, match="index"):
        pool(out, index[..., :2], x, *windows)
    with pytest.raises(RuntimeError, match="outside"):
        pool(torch.zeros(1, 2, 5, 3), torch.zeros(1, 2, 5, 3, dtype=torch.int64), x, *windows)
    with pytest.raises(RuntimeError, match="padding"):
        pool(out, index, x, [2, 2], [2, 2], [2, 2], [1, 1])
