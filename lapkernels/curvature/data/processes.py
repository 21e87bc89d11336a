"""Which data a process reads, and sums over the data of all processes.

All processes are given the same data in the same order, and each takes every world-size-th batch,
or some samples of a single batch. A process with data of its own passes a :class:`Shard`. Both are
checked: data given as the same must be the same, and no two shards may be.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler

from lapkernels.curvature.data.batches import Batch, batches_of, is_batch, tensors_in
from lapkernels.curvature.data.contents import fingerprint, plain
from lapkernels.curvature.data.exchange import ALL, Processes, given_group
from lapkernels.curvature.errors import NoBatch

P = ParamSpec("P")
R = TypeVar("R")
# In a call of several processes: what is wrong with each program that this one runs, if anything.
_problems: ContextVar[dict[str, str | None] | None] = ContextVar("problems", default=None)


def tell_problem(program: Callable[[], str], problem: str | None) -> None:
    """Let other processes know how a program compared with autograd here: all must agree."""
    problems = _problems.get()
    if problems is not None:
        problems[program()] = problem


def processes() -> Processes:
    """The processes of the present call; this one alone if there are no others."""
    group = given_group.get()
    if group is None or not dist.is_available() or not dist.is_initialized():
        return Processes(None, 0, 1)
    own = None if group == ALL else group
    rank = dist.get_rank(own)
    if rank < 0:
        raise RuntimeError("this process is not in the group given to use_processes")
    return Processes(own, rank, dist.get_world_size(own))


@dataclass(frozen=True)
class Shard:
    """Data that are this process's own part of the whole: a batch or an iterable of batches.

    .. code-block:: python

        mine = torch.utils.data.Subset(dataset, range(rank, len(dataset), world_size))
        la.fit(lk.Shard(DataLoader(mine, batch_size=64)))

    Shards may be uneven, and some of them empty. Without other processes it is all the data.
    """

    batches: Any

    def __post_init__(self) -> None:
        sampler = getattr(self.batches, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            more = sampler.total_size - len(sampler.dataset)  # pyright: ignore[reportArgumentType]
            if more:
                what = f"repeats {more} samples" if more > 0 else f"leaves out {-more} samples"
                raise ValueError(
                    f"Shard: the DistributedSampler {what} to make all shards even, which changes "
                    "the sum; use Subset(dataset, range(rank, len(dataset), world_size))"
                )


class Part:
    """The batches that this process reads out of ``data``, from the number ``start`` on.

    Batches are numbered over all processes.
    """

    def __init__(self, data: Any, together: Processes, start: int = 0) -> None:
        self.together, self.start = together, start
        self.shard = isinstance(data, Shard)
        self.data = data.batches if isinstance(data, Shard) else data
        self._digest = hashlib.sha256()
        self._problems: dict[str, str | None] = {}

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for _, batch, own in self.numbered():
            if own:
                yield batch.inputs, batch.target

    def numbered(self) -> Iterator[tuple[int, Batch, bool]]:
        """All batches that are read, with their numbers, and whether they are this process's."""
        self._digest = hashlib.sha256()
        rank, size = self.together.rank, self.together.size
        try:
            for k, batch in enumerate(self._batches()):
                if size > 1:
                    self._look(batch)
                if self.shard:
                    yield k * size + rank, batch, k * size + rank >= self.start
                else:
                    yield k, batch, k >= self.start and (k - self.start) % size == rank
        except NoBatch:
            # There may be some elsewhere.
            if size == 1:
                raise

    def _batches(self) -> Iterator[Batch]:
        """The batches as given, or one batch in parts of two samples at least."""
        size = self.together.size
        if self.shard or size == 1 or not is_batch(self.data):
            yield from batches_of(self.data)
            return
        (batch,) = batches_of(self.data)
        parts = max(1, min(size, batch.count // 2))
        for n in range(parts):
            first, last = batch.count * n // parts, batch.count * (n + 1) // parts
            yield batch.part(first, last - first)

    def _look(self, batch: Batch) -> None:
        tensors = tensors_in((batch.args, batch.kwargs, batch.target))
        name = fingerprint({str(k): tensor for k, tensor in enumerate(tensors)})
        self._digest.update(name.encode())

    def everywhere(self, what: str, make: Callable[[], R | None]) -> R | None:
        """What all processes make, merged; raises unless their data and programs go together."""

        def told() -> R | None:
            self._problems = {}
            token = _problems.set(self._problems)
            try:
                return make()
            finally:
                _problems.reset(token)

        return self.together.everywhere(what, told, self._note, check_parts)

    def _note(self) -> Note:
        return Note(self.shard, self._digest.hexdigest(), self._problems)

    def sum(self, what: str, make: Callable[[], R]) -> R:
        """What all processes make of their parts, merged."""

        def local() -> R | None:
            try:
                return make()
            except NoBatch:
                if self.together.size == 1:
                    raise
                return None

        found = self.everywhere(what, local)
        if found is None:
            raise NoBatch("data holds no batch on any process")
        return found


@dataclass(frozen=True)
class Note:
    """What one process tells the others: whether it read a shard, a name for all that it read, and
    how its programs compared with autograd.
    """

    shard: bool
    digest: str
    problems: dict[str, str | None]


def check_parts(notes: dict[int, Note]) -> str | None:
    """What is wrong with the data, and the programs, of all ranks together."""
    first = notes[0]
    nothing = hashlib.sha256().hexdigest()
    seen: dict[str, int] = {}
    programs: dict[str, tuple[int, str | None]] = {}
    for rank, note in sorted(notes.items()):
        shard, digest = note.shard, note.digest
        for program, problem in note.problems.items():
            other, known = programs.setdefault(program, (rank, problem))
            if (known is None) != (problem is None):
                bad, good = (rank, other) if known is None else (other, rank)
                return (
                    f"{problem or known} on rank {bad}, and it is on rank {good}, which runs the "
                    "same ops: give all processes route='autograd'"
                )
        if shard != first.shard:
            return f"ranks 0 and {rank}: Shard(data) is needed on all processes or on none"
        if not shard and digest != first.digest:
            return (
                f"ranks 0 and {rank} were given different data: give all processes the same data "
                "in the same order (no shuffling, or by one seed), or lk.Shard(data) if each has a "
                "part of its own"
            )
        if shard and digest != nothing and digest in seen:
            return (
                f"ranks {seen[digest]} and {rank} were given the same shard, which would count "
                "twice: leave lk.Shard away, and the processes share out the data"
            )
        seen[digest] = rank
    return None


def summed(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function of model and data, whose results add up, one over all processes.

    Only the first process shows progress and explains. Each has random numbers of its own.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def over_processes(*args: P.args, **kwargs: P.kwargs) -> R:
        together = processes()
        if together.size == 1:
            given = {name: _alone(value) for name, value in kwargs.items()}
            return function(*map(_alone, args), **given)  # pyright: ignore[reportCallIssue]
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        given["model"] = plain(cast(nn.Module, given["model"]))
        given["data"] = part = Part(given["data"], together)
        if together.rank:
            given.update({key: False for key in ("progress", "explain") if key in given})
        if given.get("method") == "mc":
            given["generator"] = own_generator(given["generator"], given["model"], together.rank)
        return part.sum(function.__name__, lambda: function(*bound.args, **bound.kwargs))

    return over_processes


def _alone(value: Any) -> Any:
    """An argument as it is for a process that works alone."""
    if isinstance(value, nn.Module):
        return plain(value)
    return value.batches if isinstance(value, Shard) else value


def own_generator(given: torch.Generator | None, model: nn.Module, rank: int) -> torch.Generator:
    """A generator of this rank's own, for one call."""
    device = torch.device("cpu") if given is None else given.device
    drawn = int(torch.randint(1 << 40, (), generator=given, device=device))
    where = next(model.parameters()).device if given is None else device
    return torch.Generator(where).manual_seed(drawn * 4093 + rank)
