"""What several processes have to do as one does. Every rank runs every check."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lapkernels as lk
from lapkernels.curvature.passes import self_check

Check = Callable[[int, int, Path], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def integers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).double()


def integer_model() -> nn.Module:
    """Its derivatives at integers are integers, whose sums have no rounding."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2)
    ).double()
    for k, p in enumerate(model.parameters()):
        p.data = integers(*p.shape, seed=k)
    return model.eval()


def smooth_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double().eval()


def batches(sizes: list[int], classes: bool = False) -> list[tuple[Tensor, Tensor]]:
    if classes:
        x = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(1)).double()
        y = torch.arange(len(x)) % 3
    else:
        x, y = integers(sum(sizes), 1, 3, 3, seed=20), integers(sum(sizes), 2, seed=21)
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def tensors(result: Any) -> list[Tensor]:
    """All numbers of a result."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, lk.Full):
        return [result.matrix]
    if isinstance(result, lk.Factors):
        return [t for t in (result.output, result.input_sum) if t is not None]
    if isinstance(result, lk.GradientAndDiagonal):
        return [result.loss, *result.gradient.values(), *result.diagonal.values()]
    return [t for value in result.values() for t in tensors(value)]


def equal(found: Any, wanted: Any) -> None:
    for a, b in zip(tensors(found), tensors(wanted), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    if not isinstance(found, Tensor | dict):
        summary = found.diagonal if isinstance(found, lk.GradientAndDiagonal) else found
        other = wanted.diagonal if isinstance(wanted, lk.GradientAndDiagonal) else wanted
        assert summary.summary == other.summary


CALLS: dict[str, Callable[..., Any]] = {
    "diag": lk.diag,
    "approx": lambda model, data: lk.diag(model, data, method="approx"),
    "empirical": lambda model, data: lk.diag(model, data, method="empirical"),
    "hessian": lambda model, data: lk.diag(model, data, method="hessian"),
    "hessian_diag": lk.hessian_diag,
    "kron": lambda model, data: lk.kron(model, data, method="exact"),
    "reduce": lambda model, data: lk.kron(model, data, method="exact", sharing="reduce"),
    "layers": lk.blocks,
    "neurons": lambda model, data: lk.blocks(model, data, by="neuron"),
    "full": lk.full,
    "full_hessian": lambda model, data: lk.full(model, data, method="hessian"),
    "gradient_and_diag": lk.gradient_and_diag,
    "product": lambda model, data: lk.ggn_product(
        model, data, {name: torch.ones_like(p) for name, p in model.named_parameters()}
    ),
    "products": lambda model, data: lk.ggn_product(
        model, data, integers(sum(p.numel() for p in model.parameters()), 2, seed=9)
    ),
}


@check
def bitwise_on_integers(rank: int, size: int, folder: Path) -> None:
    """Uneven shares, empty ones, and one batch by samples."""
    model = integer_model()
    uneven = batches([3, 1, 2, 4, 2])
    for name, call in CALLS.items():
        # One batch alone leaves all other processes of a list without any.
        for data in (uneven, uneven[:1], batches([5])[0]) if name == "diag" else (uneven,):
            with lk.use_processes(None):
                wanted = call(model, data)
            equal(call(model, data), wanted)


@check
def shards(rank: int, size: int, folder: Path) -> None:
    """Each has its own; the last one has nothing, if there are others."""
    model, whole = integer_model(), batches([3, 1, 2, 4, 2])
    with lk.use_processes(None):
        wanted = {name: call(model, whole) for name, call in CALLS.items()}
    givers = max(1, size - 1)
    own = whole[rank::givers] if rank < givers else []
    for name, call in CALLS.items():
        equal(call(model, lk.Shard(own)), wanted[name])
    la = lk.Laplace(model, structure="diag").fit(lk.Shard(own))
    assert la.measured is not None
    equal(la.measured.state, wanted["diag"])
    with pytest.raises(ValueError, match="no batch"):
        lk.diag(model, lk.Shard([]))
    if size > 1:
        with pytest.raises(ValueError, match="the same shard"):
            lk.diag(model, lk.Shard(whole))
        with pytest.raises(ValueError, match="on all processes or on none"):
            lk.diag(model, lk.Shard(whole) if rank else whole)
    with pytest.raises(TypeError, match="Shard"):
        la.find_optimum(lk.Shard(own))


@check
def repeated_samples(rank: int, size: int, folder: Path) -> None:
    dataset = TensorDataset(torch.randn(3 * size + 1, 3))
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset, size, rank))
    if size > 1:
        with pytest.raises(ValueError, match=f"repeats {size - 1} samples"):
            lk.Shard(loader)
        loader = DataLoader(
            dataset, sampler=DistributedSampler(dataset, size, rank, drop_last=True)
        )
        with pytest.raises(ValueError, match="leaves out 1 samples"):
            lk.Shard(loader)
    dataset = TensorDataset(torch.randn(3 * size, 3))
    lk.Shard(DataLoader(dataset, sampler=DistributedSampler(dataset, size, rank)))


STRUCTURES: dict[str, dict[str, Any]] = {
    "diag": {"method": "mc", "samples": 2},
    "kron": {},
    "kron_corrected": {},
    "blocks": {"by": "neuron"},
    "full": {"method": "hessian"},
    "low_rank": {"rank": 6},
    "function_space": {},
    "subnetwork": {"size": 7},
}


@check
def fits(rank: int, size: int, folder: Path) -> None:
    """Sampled labels too: they depend on the batch, not on who reads it."""
    model, data = smooth_model(), batches([4, 3, 1, 5], classes=True)
    new = torch.randn(4, 3, generator=torch.Generator().manual_seed(2)).double()
    for structure, options in STRUCTURES.items():
        prior = 50.0 if options.get("method") == "hessian" else 1.0
        make = lambda: lk.Laplace(model, "categorical", structure, prior=prior, **options)  # noqa: B023, E731
        with lk.use_processes(None):
            alone = make().fit(data)
        la = make().fit(data)
        assert la.measured is not None and la.measured.samples == 13
        slack = 1e-6 if structure == "low_rank" else 1e-10
        torch.testing.assert_close(la.log_evidence(), alone.log_evidence(), rtol=slack, atol=slack)
        variance, wanted = la.predict(new).variance, alone.predict(new).variance
        torch.testing.assert_close(variance, wanted, rtol=slack, atol=slack)
        same_on_all(variance, size)


def same_on_all(value: Tensor, size: int) -> None:
    found = [torch.empty_like(value) for _ in range(size)]
    dist.all_gather(found, value.contiguous())
    assert all(torch.equal(one, value) for one in found)


@check
def curvature_by_several_sweeps(rank: int, size: int, folder: Path) -> None:
    model, data = smooth_model(), batches([4, 3, 1, 5], classes=True)
    with lk.use_processes(None):
        low = lk.low_rank(model, data, 5, "categorical")
        corrected = lk.kron_corrected(model, data, "categorical", "exact")
    found = lk.low_rank(model, data, 5, "categorical", generator=torch.Generator())
    torch.testing.assert_close(found.dense(), low.dense(), rtol=0, atol=1e-6)
    same_on_all(found.vectors, size)
    assert found.summary == low.summary
    again = lk.kron_corrected(model, data, "categorical", "exact")
    for name in corrected:
        torch.testing.assert_close(again.dense(name), corrected.dense(name))
    assert again.summary == corrected.summary


@check
def random_numbers(rank: int, size: int, folder: Path) -> None:
    """The same for the same seed, on all processes, and not the same on two of them."""
    model = nn.Linear(3, 2).double()
    model.weight.data.fill_(0)
    model.bias.data.fill_(0)
    x = torch.eye(3).double()[rank].repeat(2, 1)
    draw = lambda: lk.diag(model, lk.Shard(x), method="mc", generator=seeded())["weight"]  # noqa: E731
    found = draw()
    assert torch.equal(found, draw())
    same_on_all(found, size)
    # Column r is what rank r drew, as its inputs are zero elsewhere.
    assert len(found[:, :size].unique()) == 2 * size


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@check
def a_program_that_one_process_finds_wrong(rank: int, size: int, folder: Path) -> None:
    """What is wrong for the samples of one process is not used by the others."""
    model, data = smooth_model(), batches([4, 3, 2, 5], classes=True)
    with pytest.MonkeyPatch.context() as patch:
        real = self_check._Check.verdict

        def doubtful(checked: Any) -> self_check.Verdict:
            if rank == size - 1 and not checked.by_autograd:
                return self_check.Verdict("", "the gradient of 0.weight is not autograd's")
            return real(checked)

        patch.setattr(self_check._Check, "verdict", doubtful)
        calls = (
            lambda: lk.diag(model, data, "categorical"),
            lambda: lk.Laplace(model, "categorical").fit(data),
        )
        for call in calls if size > 1 else ():
            with pytest.raises(ValueError, match=f"autograd's on rank {size - 1}.*rank 0.*route="):
                call()
        found = lk.diag(model, data, "categorical", route="autograd")
        lk.diag(model, lk.Shard(data if rank == size - 1 else []), "categorical", route="autograd")
    torch.testing.assert_close(dict(found), dict(lk.diag(smooth_model(), data, "categorical")))


@check
def failures(rank: int, size: int, folder: Path) -> None:
    """What one process raises, all raise, and all can go on."""
    model, data = smooth_model(), batches([4, 3, 1, 5], classes=True)

    class Broken:
        def __iter__(self) -> Iterator[Any]:
            yield data[0]
            if rank == size - 1:
                raise OSError("the disk is gone")
            yield from data[1:]

    calls: list[Callable[[], Any]] = [
        lambda: lk.diag(model, Broken(), "categorical"),
        lambda: lk.kron_corrected(model, Broken(), "categorical"),
        lambda: lk.low_rank(model, Broken(), 2, "categorical"),
        lambda: lk.Laplace(model, "categorical", "kron").fit(Broken()),
        lambda: lk.Laplace(model, "categorical", "kron").fit(Broken(), checkpoint=folder / "b"),
        lambda: lk.Laplace(model, "categorical", "low_rank", rank=2).fit(Broken()),
    ]
    for call in calls:
        kind = OSError if rank == size - 1 else RuntimeError
        with pytest.raises(kind, match="the disk is gone"):
            call()
    dist.barrier()
    lk.diag(model, data, "categorical")
    if size == 1:
        return
    with pytest.raises(ValueError, match="different data"):
        lk.diag(model, data[:: -1 if rank else 1], "categorical")
    with pytest.raises(ValueError, match="different data"):
        lk.Laplace(model, "categorical").fit(data[: 4 - rank])
    with pytest.raises(ValueError, match="different calls: .*diag and kron"):
        (lk.kron if rank else lk.diag)(model, data, "categorical")
    changed = smooth_model()
    with torch.no_grad():
        next(changed.parameters()).add_(rank)
    with pytest.raises(ValueError, match="different models"):
        lk.diag(changed, data, "categorical")


@check
def wrapped_models(rank: int, size: int, folder: Path) -> None:
    model, data = integer_model(), batches([3, 1, 2])
    wanted = lk.diag(model, data)
    wrapped = DistributedDataParallel(model)
    equal(lk.diag(wrapped, data), wanted)
    equal(lk.gradient_and_diag(wrapped, data), lk.gradient_and_diag(model, data))
    variance = {name: 1 / (1 + h) for name, h in wanted.items()}
    x = data[0][0]
    assert torch.equal(
        lk.predictive_variance(wrapped, x, variance), lk.predictive_variance(model, x, variance)
    )
    la, plain = (lk.Laplace(m, structure="kron", method="exact") for m in (wrapped, model))
    assert torch.equal(la.fit(data).predict(x).variance, plain.fit(data).predict(x).variance)
    lk.propagated_variance(wrapped, x, variance)
    lk.low_rank(wrapped, data, 2)
    mesh = dist.init_device_mesh("cpu", (size,))
    split = integer_model()
    fully_shard(split, mesh=mesh)
    calls: list[Callable[[], Any]] = [
        lambda: lk.diag(split, data),
        lambda: lk.Laplace(split),
        lambda: lk.hessian_diag(split, data),
        lambda: lk.low_rank(split, data, 2),
    ]
    for call in calls:
        with pytest.raises(lk.Refused, match="is a DTensor"):
            call()


@check
def checkpoints_at_other_sizes(rank: int, size: int, folder: Path) -> None:
    """Two processes begin, all go on, one ends; or shards, which stay what they are."""
    model, data = integer_model(), batches([3, 1, 2, 4, 2, 3, 1])
    path = folder / "fit.safetensors"
    pair = dist.new_group([0, 1]) if size > 1 else None

    class Stops:
        def __init__(self, behind: int) -> None:
            self.behind = behind

        def __iter__(self) -> Iterator[Any]:
            yield from data[: self.behind]
            raise OSError("stopped")

    with lk.use_processes(None):
        whole = lk.Laplace(model, structure="subnetwork", size=9).fit(data)
    fit = lambda given: lk.Laplace(model, structure="subnetwork", size=9).fit(  # noqa: E731
        given, checkpoint=path
    )
    if rank < 2:
        with lk.use_processes(pair), pytest.raises(OSError, match="stopped"):
            fit(Stops(2))
    elif size > 2:
        with lk.use_processes(pair), pytest.raises(RuntimeError, match="not in the group"):
            fit(data)
    dist.barrier()
    with pytest.raises(OSError, match="stopped"):
        fit(Stops(2 + size))
    la = fit(data)
    with lk.use_processes(None):
        again = fit(data)
    for one in (la, again):
        assert one.measured is not None and whole.measured is not None
        assert one.measured.samples == 16
        assert torch.equal(one.measured.state.full.matrix, whole.measured.state.full.matrix)
    with pytest.raises(RuntimeError if rank else ValueError, match="its shards is 'none'"):
        fit(lk.Shard(data))


@check
def a_process_that_dies(rank: int, size: int, folder: Path) -> None:
    """The last check: its connections break, and the others raise."""
    model, data = smooth_model(), batches([4, 3, 1, 5], classes=True)

    class Deadly:
        def __iter__(self) -> Iterator[Any]:
            if rank == size - 1:
                os._exit(0)
            yield from data

    if size == 1:
        return
    with pytest.raises(RuntimeError, match=f"rank {size - 1}: the connection broke"):
        lk.diag(model, Deadly(), "categorical")
