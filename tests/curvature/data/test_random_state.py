"""torch's own random numbers: which generators are given back, and that they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import lapkernels
from lapkernels.curvature.data import random_state
from lapkernels.curvature.data.random_state import gpus_of, random_state_kept, seeded, unique_gpus


def test_gpus_are_picked_once_each_in_order() -> None:
    names = ("cpu", "cuda:1", "meta", "cuda:0", "cuda:1", "cpu")
    found = unique_gpus(torch.device(name) for name in names)
    assert found == [torch.device("cuda:1"), torch.device("cuda:0")]


def test_parameters_buffers_and_nests_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(random_state, "unique_gpus", list)
    model = nn.Linear(2, 1, bias=False)
    model.register_buffer("mean", torch.zeros(1, device="meta"))
    nest = {"a": [torch.zeros(1, device="meta")], "b": (torch.zeros(1), "no tensor")}
    assert [device.type for device in gpus_of(model, nest)] == ["cpu", "meta", "meta", "cpu"]


def test_no_gpu_is_looked_for_before_the_first_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(random_state, "unique_gpus", list)
    assert gpus_of(torch.zeros(1)) == []


def test_the_stream_goes_on_as_it_was() -> None:
    before = torch.get_rng_state()
    with random_state_kept(torch.zeros(1)):
        torch.rand(3)
        assert not torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ZeroDivisionError), seeded(5):
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_starts_the_numbers_of_manual_seed() -> None:
    with random_state_kept():
        torch.manual_seed(5)
        wanted = torch.rand(4)
    with seeded(5):
        assert torch.equal(torch.rand(4), wanted)


@pytest.mark.gpu
def test_the_stream_of_a_gpu_goes_on_as_it_was() -> None:
    x = torch.zeros(1, device="cuda")
    before = torch.cuda.get_rng_state()
    with random_state_kept(x):
        torch.rand_like(x)
        assert not torch.equal(torch.cuda.get_rng_state(), before)
    with seeded(5, x):
        first = torch.rand_like(x)
    with seeded(5, x):
        assert torch.equal(torch.rand_like(x), first)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_nothing_else_in_the_package_gives_back_the_cpus_numbers_alone() -> None:
    package = Path(lapkernels.__file__).parent
    sources = {
        path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")
    }
    forks = {name for name, text in sources.items() if "fork_rng" in text}
    # The second starts both of its passes from states that it read itself.
    assert forks == {"curvature/data/random_state.py", "variational/difference.py"}
    assert [name for name, text in sources.items() if "torch.manual_seed(" in text] == []
