"""tanh by our kernel is torch's up to two units in the last place, with its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapkernels import use_backend
from lapkernels.ops.tanh import LEAST, tanh

EPS = torch.finfo(torch.float32).eps


def values() -> Tensor:
    """All magnitudes of float32, denormal ones included, both signs, and where formulas meet."""
    exponents = torch.linspace(-149, 127, 3 * LEAST, dtype=torch.float64)
    near = torch.linspace(0.6, 0.65, LEAST, dtype=torch.float64)
    moderate = torch.linspace(0, 10, 2 * LEAST, dtype=torch.float64)
    x = torch.cat([exponents.exp2(), near, moderate])
    return torch.cat([x, -x]).float()


@pytest.mark.usefixtures("backend")
def test_is_right_to_two_units_in_the_last_place() -> None:
    x = values()
    known = x.double().tanh()
    error = (tanh(x).double() - known).abs()
    # Below the normal numbers a unit is the smallest one.
    assert bool((error <= 2 * EPS * known.abs().clamp(min=torch.finfo(torch.float32).tiny)).all())


@pytest.mark.usefixtures("backend")
def test_what_is_not_finite() -> None:
    x = torch.zeros(LEAST)
    x[:4] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    found = tanh(x)
    assert bool(found[0].isnan())
    assert found[1:3].tolist() == [1, -1]
    assert bool(found[3].signbit())
    assert not found[3:].any()


@pytest.mark.usefixtures("cpp")
def test_gradients() -> None:
    x = torch.linspace(-3, 3, LEAST).requires_grad_()
    y = tanh(x)
    assert "Tanh" in type(y.grad_fn).__name__
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    exact = x.detach().double().tanh()
    torch.testing.assert_close(first.detach().double(), 1 - exact**2, rtol=0, atol=4 * EPS)
    torch.testing.assert_close(second.double(), -2 * exact * (1 - exact**2), rtol=0, atol=16 * EPS)


@pytest.mark.usefixtures("cpp")
def test_same_bits_for_any_number_of_threads() -> None:
    x, threads = values(), torch.get_num_threads()
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(tanh(x))
    torch.set_num_threads(threads)
    assert all(torch.equal(found[0], one) for one in found)


def test_other_tensors_are_torchs() -> None:
    x = torch.linspace(-3, 3, 2 * LEAST)
    with use_backend("cpp"):
        for one in (x[:8], x.double(), x[::2], x.half()):
            assert torch.equal(tanh(one), torch.tanh(one))
    with use_backend("reference"):
        assert torch.equal(tanh(x), torch.tanh(x))


@pytest.mark.usefixtures("cpp")
def test_kernel_refuses_what_it_cannot_take() -> None:
    run, x = torch.ops.lapkernels_native.tanh, torch.zeros(4, 4)
    with pytest.raises(RuntimeError, match="out"):
        run(torch.zeros(4, 3), x)
    with pytest.raises(RuntimeError, match="contiguous"):
        run(torch.zeros(4, 4), x.t())
