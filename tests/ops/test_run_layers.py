"""Layers in one call: each is torch's own with the activation behind it, and small integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from lapkernels import use_backend
from lapkernels.kernels import NATIVE
from lapkernels.kernels.native import native_op
from lapkernels.ops import Layers, can_run, run_layers
from tests.ops.compare import assert_same

EPS = torch.finfo(torch.float32).eps
SAMPLES = 7
# By name: modules, and the input of one sample. Features around vectors, tiles and blocks.
NETWORKS: dict[str, tuple[list[nn.Module], tuple[int, ...]]] = {
    "linear": ([nn.Linear(70, 33), nn.Linear(33, 2), nn.Linear(2, 19), nn.Linear(19, 17)], (70,)),
    "no bias": ([nn.Linear(5, 40, bias=False), nn.Linear(40, 1)], (5,)),
    "conv1d": ([nn.Conv1d(3, 4, 3, 2, 1), nn.Conv1d(4, 2, 2, bias=False)], (3, 11)),
    "conv2d": ([nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(2, 5, (1, 3))], (3, 7, 9)),
    "groups": ([nn.Conv2d(4, 6, 3, 1, 2, 2, 2), nn.Conv2d(6, 2, 3, groups=2)], (4, 6, 5)),
    "transposed": (
        [nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1), nn.Conv2d(3, 2, 3)],
        (4, 4, 5),
    ),
    "conv3d": ([nn.Conv3d(2, 3, (2, 1, 3), (1, 2, 1), (1, 0, 1))], (2, 4, 5, 6)),
}


def draw(seed: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, tuple(shape), generator=generator).to(dtype)


@dataclass
class Problem:
    """Layers with tensors of small integers, and what torch makes of them in double precision."""

    layers: Layers
    x: Tensor
    read: list[Tensor]
    known: list[Tensor]

    @classmethod
    def of(cls, name: str, dtype: torch.dtype, activation: str) -> Problem:
        modules, size = NETWORKS[name]
        x = draw(0, (SAMPLES, *size), dtype)
        found = cls(Layers(), x, [], [])
        at = x.double()
        for k, module in enumerate(modules):
            weight, bias = module.weight, module.bias
            assert isinstance(weight, Tensor)
            own = [draw(10 + 2 * k, weight.shape, dtype)]
            if isinstance(bias, Tensor):
                own.append(draw(11 + 2 * k, bias.shape, dtype))
            at = _behind(activation, _call(module, at, own))
            found.read += own
            found.layers.add(at.shape, len(own) > 1, _taps(module), activation)
            found.known.append(at)
            # What a kernel has rounded the next one reads.
            at = at.to(dtype).double()
        return found


def _call(module: nn.Module, x: Tensor, read: list[Tensor]) -> Tensor:
    names = ("weight", "bias")[: len(read)]
    given = {name: one.double() for name, one in zip(names, read, strict=True)}
    return torch.func.functional_call(module, given, x)


def _behind(name: str, z: Tensor) -> Tensor:
    return z if name == "identity" else getattr(torch, name)(z)


def _taps(module: nn.Module) -> list[int]:
    if isinstance(module, nn.Linear):
        return []
    lists = (module.stride, module.padding, module.dilation)
    transposed = isinstance(module, nn.ConvTranspose2d)
    return [*(n for one in lists for n in one), module.groups, int(transposed)]  # pyright: ignore


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_small_integers(name: str, activation: str, dtype: torch.dtype) -> None:
    problem = Problem.of(name, dtype, activation)
    found = run_layers(problem.layers, problem.x, problem.read)
    for one, known in zip(found, problem.known, strict=True):
        assert_same(one, known.to(dtype))
        assert one.any()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", NETWORKS)
def test_tanh(name: str) -> None:
    problem = Problem.of(name, torch.float32, "tanh")
    first = run_layers(problem.layers, problem.x, problem.read)[0]
    # Sums of integers are exact, and the tanh of our kernel is right to two units.
    torch.testing.assert_close(first.double(), problem.known[0], rtol=2 * EPS, atol=0)


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("name", NETWORKS)
def test_layouts_threads_and_what_is_not_finite(name: str) -> None:
    problem = Problem.of(name, torch.float32, "relu")
    x, threads = problem.x, torch.get_num_threads()
    known = run_layers(problem.layers, x, problem.read)
    wide = torch.full((SAMPLES, x[0].numel() + 3), torch.nan)
    wide[:, :-3] = x.flatten(1)
    others = [x, wide[:, :-3].unflatten(1, x.shape[1:])]
    if x.dim() > 2:
        others.append(x.transpose(1, 2).contiguous().transpose(1, 2))
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for other in others:
            for one, expected in zip(
                run_layers(problem.layers, other, problem.read), known, strict=True
            ):
                assert torch.equal(one, expected)
    torch.set_num_threads(threads)
    x[4] = torch.nan
    found = run_layers(problem.layers, x, problem.read)[-1]
    kept = [n for n in range(SAMPLES) if n != 4]
    assert bool(found[4].isnan().all()) and torch.equal(found[kept], known[-1][kept])


def test_nothing_runs_where_there_is_no_kernel() -> None:
    x, weight = torch.ones(2, 3), torch.ones(4, 3)
    assert can_run(x, [weight]) is (NATIVE.path is not None)
    with use_backend("reference"):
        assert not can_run(x, [weight])
    assert not can_run(x.half(), [weight.half()])
    assert not can_run(x.double(), [weight])
    assert not can_run(x[:0], [weight])


@pytest.mark.skipif(NATIVE.path is None, reason=f"no compiled library: {NATIVE.reason}")
def test_wrong_arguments_are_named() -> None:
    kernel = native_op("run_layers")
    assert kernel is not None
    out, x, weight, bias = torch.zeros(2, 3), torch.ones(2, 20), torch.ones(3, 20), torch.ones(3)
    linear, conv = [0, 1, 0], [0, 0, 1, 1, 0, 1, 1, 0]
    kernel([out], x, [weight, bias], linear)
    assert bool((out == 21).all())
    image, taps = torch.ones(2, 4, 5), torch.ones(3, 4, 1)
    for wrong, message in (
        (([out], x, [weight[:, :17], bias], linear), "weight"),
        (([out], x, [weight, bias[:2]], linear), "bias"),
        (([out], x, [weight], linear), "read ends"),
        (([out], x, [weight, bias, bias], linear), "more is given"),
        (([out], x, [weight, bias], linear[:2]), "plan ends"),
        (([], x, [weight, bias], linear), "more is given"),
        (([out[:1]], x, [weight, bias], linear), "made"),
        (([torch.zeros(3, 2).T], x, [weight, bias], linear), "contiguous"),
        (([out], torch.ones(20, 2).T, [weight, bias], linear), "dense"),
        (([out], x.double(), [weight, bias], linear), "dtype"),
        (([out], x, [weight, bias], [3, 1, 0]), "activation"),
        (([out], x, [weight, bias], [6, 1, 0]), "activation"),
        (([out], x, [weight, bias], [0, 1, 4]), "spatial"),
        (([out[:, :0]], x, [weight[:0], bias[:0]], linear), "empty"),
        (([torch.zeros(2, 3, 5)], image, [taps[:, :3]], conv), "groups"),
        (([torch.zeros(2, 2, 5)], image, [taps], conv), "weight"),
    ):
        with pytest.raises(RuntimeError, match=message):
            kernel(*wrong)
