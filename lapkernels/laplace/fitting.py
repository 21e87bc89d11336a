"""Fitting: sums over the data, batch by batch, that can be resumed from a checkpoint."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapkernels.curvature.data.batches import Batch, Observed, tensors_in
from lapkernels.curvature.data.exchange import merged
from lapkernels.curvature.data.processes import Part, Shard, processes
from lapkernels.curvature.errors import NoBatch
from lapkernels.curvature.passes.passes import with_progress
from lapkernels.laplace.files import Stored, flatten, read, unflatten, write
from lapkernels.laplace.structures import Structure, Subject
from lapkernels.laplace.weights import fingerprint_of
from lapkernels.likelihoods import Categorical, Likelihood

# Options that every structure takes.
COMMON_OPTIONS = ("memory_budget",)


@dataclass(frozen=True)
class Measured:
    """The sums over all data seen.

    ``nll`` + ``constant`` is -log p(y | f) at the trained parameters; ``targets`` counts the
    observed numbers, ``samples`` the samples. Without labels they are None. A finished fit has the
    ``fingerprint`` of its model.
    """

    state: Any
    samples: int = 0
    nll: float | None = 0.0
    constant: float | None = 0.0
    targets: int = 0
    fingerprint: dict[str, str] = field(default_factory=dict)

    def merge(self, other: Measured) -> Measured:
        """The sum over both data sets."""
        if self.fingerprint != other.fingerprint:
            raise ValueError("the results belong to different models, or to other values in them")
        state = None if self.state is None else self.state.merge(other.state)
        return Measured(
            state,
            self.samples + other.samples,
            _sum(self.nll, other.nll),
            _sum(self.constant, other.constant),
            self.targets + other.targets,
            self.fingerprint,
        )


@dataclass(frozen=True)
class Progress:
    """Progress of a fit: the sums of the first ``batches`` batches of this sweep.

    ``digests`` identifies the last of them, by number.
    """

    sweep: int = 0
    batches: int = 0
    digests: dict[int, str] = field(default_factory=dict)
    measured: Measured | None = None
    basis: Any = None

    def merge(self, other: Progress) -> Progress:
        """The sums of two processes' batches."""
        return replace(
            self,
            batches=max(self.batches, other.batches),
            digests={**self.digests, **other.digests},
            measured=merged(self.measured, other.measured),
        )


def measure(
    structure: Structure,
    subject: Subject,
    data: Any,
    *,
    seed: int,
    progress: bool,
    checkpoint: Path | None,
) -> Measured:
    """All sweeps of a structure over the data, of all processes.

    With a ``checkpoint`` the sums are written after every batch, and read if the file is there.
    Several processes then synchronise after a batch each, otherwise at the end of a sweep.
    """
    together = processes()
    progress = progress and together.rank == 0
    fingerprint = fingerprint_of(subject.model)
    if structure.whole:
        if checkpoint is not None:
            raise ValueError("this structure reads the data as a whole: it has no checkpoint")
        subject.generator.manual_seed(seed)
        shown = replace(subject, options={**subject.options, "progress": progress})
        state, seen = _measured(structure, shown, data, None)
        found = together.everywhere("the likelihood", lambda: seen)
        assert found is not None
        return replace(found, state=state, fingerprint=fingerprint)
    sweeps = structure.sweeps
    if len(sweeps) > 1 and isinstance(data, Iterator):
        raise ValueError("data is an iterator, but it is read twice: give a list or a loader")
    identity = _identity(subject, structure, data, together.size, fingerprint)

    def save(done: Progress) -> None:
        if checkpoint is not None and together.rank == 0:
            write(checkpoint, _stored(done, structure, identity))

    def restore() -> Progress | None:
        if checkpoint is None or together.rank or not checkpoint.exists():
            return None
        return _restored(checkpoint, structure, subject, identity)

    done = together.everywhere("reading the checkpoint", restore) or Progress()
    for sweep in range(done.sweep, len(sweeps)):
        own = _with_options_of(sweeps[sweep], subject)
        part = Part(data, together, done.batches)
        stream = part.numbered()
        # All processes read up to the same batch before they synchronise.
        reads = None if checkpoint is None else 1 if part.shard else together.size
        step = Step(sweeps[sweep], own, sweep, seed, reads)
        done = _swept(step, with_progress(stream, data) if progress else stream, part, done, save)
        if done.measured is None:
            raise NoBatch("data holds no batch")
        if sweep + 1 < len(sweeps):
            basis = structure.between(subject, done.measured.state)
            done = Progress(sweep + 1, basis=basis)
    assert done.measured is not None
    return replace(done.measured, fingerprint=fingerprint)


Numbered = Iterator[tuple[int, Batch, bool]]


def _swept(
    step: Step,
    stream: Numbered,
    part: Part,
    done: Progress,
    save: Callable[[Progress], None],
) -> Progress:
    """Run to the end of a sweep; after each step save the sums of all processes."""
    while True:
        make = partial(step, stream, done)
        found = part.everywhere("Laplace.fit", make)
        if found is None:
            return done
        done = replace(found, measured=merged(done.measured, found.measured))
        if step.reads is None:
            return done
        part.together.everywhere("writing the checkpoint", partial(save, done))


@dataclass(frozen=True)
class Step:
    """One step of a sweep: the next batches that are read, ``reads`` of them, or all there are."""

    structure: Structure
    subject: Subject
    sweep: int
    seed: int
    reads: int | None

    def __call__(self, stream: Numbered, last: Progress) -> Progress | None:
        """This process's share of them, added to ``last``; None if it has none."""
        total: Measured | None = None
        digests: dict[int, str] = {}
        count, end = 0, last.batches
        for number, batch, own in stream:
            if number < last.batches:
                if number in last.digests and digest(batch) != last.digests[number]:
                    raise ValueError(
                        f"batch {number} is not the one that the checkpoint has: give the same "
                        "data in the same order, or delete the file"
                    )
                continue
            if own:
                # A seed for each batch, so that a resumed fit makes the same draws.
                self.subject.generator.manual_seed(self.seed * 1_000_003 + 2 * number + self.sweep)
                data = [(batch.inputs, batch.target)]
                state, seen = _measured(self.structure, self.subject, data, last.basis)
                assert seen is not None
                total = merged(total, replace(seen, state=state))
                end = number + 1
                if self.reads is not None:
                    digests[number] = digest(batch)
            count += 1
            if count == self.reads:
                break
        return None if total is None else Progress(self.sweep, end, digests, total, last.basis)


def _with_options_of(structure: Structure, subject: Subject) -> Subject:
    """The subject with only those options that a sweep's structure has."""
    known = (*structure.options, *COMMON_OPTIONS)
    return replace(subject, options={k: v for k, v in subject.options.items() if k in known})


def _measured(
    structure: Structure, subject: Subject, data: Any, basis: Any
) -> tuple[Any, Measured | None]:
    """The state of data, and -log p(y | f) from the same outputs, None if there were none."""
    total: Measured | None = None

    @torch.no_grad()
    def see(f: Tensor, y: Any) -> None:
        nonlocal total
        warn_of_probabilities(f, subject.likelihood)
        if y is None:
            seen = Measured(None, len(f), None, None)
        else:
            nll = float(subject.likelihood.nll(f.double(), y))
            constant = float(subject.likelihood.constant(f, y))
            seen = Measured(None, len(f), nll, constant, y.numel())
        total = merged(total, seen)

    return structure.measure(subject, Observed(data, see), basis), total


def warn_of_probabilities(f: Tensor, likelihood: Likelihood) -> None:
    """Warn if the outputs of classes look like probabilities, not logits."""
    if not isinstance(likelihood, Categorical) or not bool((f >= 0).all()):
        return
    total = f.sum(likelihood.dim)
    if bool(((total - 1).abs() < 1e-3).all()):
        warnings.warn(
            "the model's outputs are probabilities, as they are positive and add up to 1 over the "
            "classes, but logits are needed: leave the softmax out of the model",
            stacklevel=2,
        )


def digest(batch: Batch) -> str:
    """A digest of the values of a batch."""
    digest = hashlib.sha256()
    for tensor in tensors_in((batch.args, batch.kwargs, batch.target)):
        value = tensor.detach().cpu()
        digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _stored(done: Progress, structure: Structure, identity: dict[str, str]) -> Stored:
    assert done.measured is not None
    parts = {"state": structure.sweeps[done.sweep].pack(done.measured.state)}
    if done.basis is not None:
        parts["basis"] = structure.pack_basis(done.basis)
    tensors, data = flatten(parts)
    data["measured"] = asdict(replace(done.measured, state=None))
    data["progress"] = {"sweep": done.sweep, "batches": done.batches, "digests": done.digests}
    data["subject"] = identity
    return Stored("checkpoint", tensors, data)


def _identity(
    subject: Subject, structure: Structure, data: Any, size: int, fingerprint: dict[str, str]
) -> dict[str, str]:
    """What must be the same when a fit resumes; the number of processes only with shards."""
    values = list(subject.parameters), fingerprint
    return {
        "shards": str(size) if isinstance(data, Shard) else "none",
        "structure": type(structure).__name__,
        "method": f"{subject.method}, {subject.likelihood!r}",
        "options": repr(sorted(subject.options.items())),
        "parameters": hashlib.sha256(repr(values).encode()).hexdigest()[:16],
    }


def _restored(
    checkpoint: Path, structure: Structure, subject: Subject, identity: dict[str, str]
) -> Progress:
    """The progress in a checkpoint."""
    stored = read(checkpoint, "checkpoint")
    try:
        return _progress(checkpoint, stored, structure, subject, identity)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{checkpoint} is no checkpoint that this version of lapkernels can read: {error!r}"
        ) from error


def _progress(
    checkpoint: Path,
    stored: Stored,
    structure: Structure,
    subject: Subject,
    identity: dict[str, str],
) -> Progress:
    for key, value in identity.items():
        if stored.data["subject"][key] != value:
            raise ValueError(
                f"the checkpoint {checkpoint} belongs to another fit, its {key} is "
                f"{stored.data['subject'][key]!r} and not {value!r}: delete it, or name another"
            )
    device = next(iter(subject.parameters.values())).device
    where = stored.data["progress"]
    if where["sweep"] not in range(len(structure.sweeps)) or where["batches"] < 1:
        raise ValueError(f"{checkpoint} says that it is at {where}, where no fit can be")
    basis = None
    if "basis" in stored.data:
        basis = structure.unpack_basis(unflatten("basis", stored, device))
    own = structure.sweeps[where["sweep"]]
    state = own.unpack(unflatten("state", stored, device), basis)
    wrong = own.wrong_with(state, subject.shapes)
    if wrong:
        raise ValueError(f"{checkpoint}: {wrong}")
    measured = Measured(**{**stored.data["measured"], "state": state})
    digests = {int(number): digest for number, digest in where["digests"].items()}
    return Progress(where["sweep"], where["batches"], digests, measured, basis)


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b
