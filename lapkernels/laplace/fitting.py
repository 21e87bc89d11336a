"""One pass over the data, batch by batch, that can stop and go on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lapkernels.curvature.passes import with_progress
from lapkernels.curvature.selection import Batch, batches_of, selector, tensors_in
from lapkernels.curvature.state import fingerprint
from lapkernels.laplace.files import Stored, flatten, read, unflatten, write
from lapkernels.laplace.structures import Structure, Subject

# Options that every structure takes.
COMMON_OPTIONS = ("memory_budget",)


@dataclass(frozen=True)
class Measured:
    """The sums over all data seen.

    ``nll`` and ``constant`` make up -log p(y | f) at the trained parameters; ``targets`` counts the
    numbers observed, ``samples`` the samples. Those of data without labels are None.
    """

    state: Any
    samples: int = 0
    nll: float | None = 0.0
    constant: float | None = 0.0
    targets: int = 0

    def merge(self, other: Measured) -> Measured:
        """Of both data sets together."""
        state = None if self.state is None else self.state.merge(other.state)
        return Measured(
            state,
            self.samples + other.samples,
            _sum(self.nll, other.nll),
            _sum(self.constant, other.constant),
            self.targets + other.targets,
        )


@dataclass(frozen=True)
class Progress:
    """How far a fit has come: batches done in this sweep, and what they gave."""

    sweep: int = 0
    batches: int = 0
    digest: str = ""
    measured: Measured | None = None
    basis: Any = None


def measure(
    structure: Structure,
    subject: Subject,
    data: Any,
    *,
    seed: int,
    progress: bool,
    checkpoint: Path | None,
) -> Measured:
    """All sweeps of a structure over the data.

    With a ``checkpoint`` the sums are written after every batch, and read if the file is there.
    """
    if structure.whole:
        if checkpoint is not None:
            raise ValueError("this structure reads the data as a whole: it has no checkpoint")
        subject.generator.manual_seed(seed)
        state = structure.measure(subject, data, None)
        return replace(_likelihood_of(subject, data, progress), state=state)
    sweeps = [structure] if structure.first is None else [structure.first, structure]
    if len(sweeps) > 1 and isinstance(data, Iterator):
        raise ValueError("data is an iterator, but it is read twice: give a list or a loader")
    done = Progress()
    if checkpoint is not None and checkpoint.exists():
        done = _restored(checkpoint, structure, subject)
    for sweep in range(done.sweep, len(sweeps)):
        own = _with_options_of(sweeps[sweep], subject)
        batches = batches_of(data)
        for number, batch in enumerate(with_progress(batches, data) if progress else batches):
            if number < done.batches:
                if number == done.batches - 1 and digest(batch) != done.digest:
                    raise ValueError(
                        f"batch {number} is not the one that the checkpoint {checkpoint} ends "
                        "with: give the same data in the same order, or delete the file"
                    )
                continue
            # A seed of its own for each batch: the same draws whether resumed or not.
            subject.generator.manual_seed(seed * 1_000_003 + 2 * number + sweep)
            state = sweeps[sweep].measure(own, [(inputs_of(batch), batch.target)], done.basis)
            found = replace(_likelihood_of_batch(own, batch), state=state)
            total = found if done.measured is None else done.measured.merge(found)
            done = Progress(sweep, number + 1, digest(batch), total, done.basis)
            if checkpoint is not None:
                write(checkpoint, _stored(done, structure, subject))
        assert done.measured is not None
        if sweep + 1 < len(sweeps):
            basis = structure.between(subject, done.measured.state)
            done = Progress(sweep + 1, basis=basis)
    assert done.measured is not None
    return done.measured


def _with_options_of(structure: Structure, subject: Subject) -> Subject:
    """The subject with the options alone that a sweep's structure knows."""
    known = (*structure.options, *COMMON_OPTIONS)
    return replace(subject, options={k: v for k, v in subject.options.items() if k in known})


def _likelihood_of(subject: Subject, data: Any, progress: bool) -> Measured:
    batches = batches_of(data)
    parts = [
        _likelihood_of_batch(subject, batch)
        for batch in (with_progress(batches, data) if progress else batches)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total.merge(part)
    return total


@torch.no_grad()
def _likelihood_of_batch(subject: Subject, batch: Batch) -> Measured:
    """-log p(y | f) of a batch, with no state."""
    if batch.target is None:
        return Measured(None, batch.count, None, None)
    with torch.random.fork_rng(devices=[]):
        result = subject.model(*batch.args, **batch.kwargs)
    f = selector(subject.output, batch.count)(result)
    nll = float(subject.likelihood.nll(f.double(), batch.target))
    constant = float(subject.likelihood.constant(f, batch.target))
    return Measured(None, batch.count, nll, constant, batch.target.numel())


def inputs_of(batch: Batch) -> Any:
    """The inputs of a batch as users give them."""
    return batch.kwargs if batch.kwargs else batch.args


def digest(batch: Batch) -> str:
    """A name for the values of a batch."""
    digest = hashlib.sha256()
    for tensor in tensors_in((batch.args, batch.kwargs, batch.target)):
        value = tensor.detach().cpu()
        digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _stored(done: Progress, structure: Structure, subject: Subject) -> Stored:
    assert done.measured is not None
    first = done.sweep == 0 and structure.first is not None
    own = structure.first if first and structure.first is not None else structure
    parts = {"state": own.pack(done.measured.state)}
    if done.basis is not None:
        parts["basis"] = structure.pack_basis(done.basis)
    tensors, data = flatten(parts)
    data["measured"] = asdict(replace(done.measured, state=None))
    data["progress"] = {"sweep": done.sweep, "batches": done.batches, "digest": done.digest}
    data["subject"] = _identity(subject, structure)
    return Stored("checkpoint", tensors, data)


def _identity(subject: Subject, structure: Structure) -> dict[str, str]:
    """What has to be the same when a fit goes on."""
    return {
        "structure": type(structure).__name__,
        "method": f"{subject.method}, {subject.likelihood!r}",
        "options": repr(sorted(subject.options.items())),
        "parameters": fingerprint(subject.parameters),
    }


def _restored(checkpoint: Path, structure: Structure, subject: Subject) -> Progress:
    stored = read(checkpoint, "checkpoint")
    for key, value in _identity(subject, structure).items():
        if stored.data["subject"][key] != value:
            raise ValueError(
                f"the checkpoint {checkpoint} belongs to another fit, its {key} is "
                f"{stored.data['subject'][key]!r} and not {value!r}: delete it, or name another"
            )
    device = next(iter(subject.parameters.values())).device
    where = stored.data["progress"]
    basis = None
    if "basis" in stored.data:
        basis = structure.unpack_basis(unflatten("basis", stored, device))
    own = structure
    if where["sweep"] == 0 and structure.first is not None:
        own = structure.first
    state = own.unpack(unflatten("state", stored, device), basis)
    measured = Measured(**{**stored.data["measured"], "state": state})
    return Progress(**where, measured=measured, basis=basis)


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b
