"""Training with validation, early stopping, a schedule, and checkpoints to resume from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lapkernels.autoencoder import checkpoints
from lapkernels.curvature.data.batches import Batch, batches_of
from lapkernels.curvature.data.random_state import seeded
from lapkernels.curvature.passes.passes import with_progress

if TYPE_CHECKING:
    from lapkernels.autoencoder.interface import StochasticAutoencoder

Schedule = Literal["plateau"] | Callable[[Optimizer], LRScheduler]


@dataclass(frozen=True)
class Epoch:
    """Losses of a sample, on average over an epoch, and the learning rate it had."""

    loss: float
    validation: float | None
    rate: float


@dataclass
class Position:
    """Progress of a training: ``batches`` of the present epoch are done.

    ``loss`` is their sum over ``samples``; ``digest`` identifies the last batch.
    """

    epoch: int = 0
    batches: int = 0
    loss: float = 0.0
    samples: int = 0
    digest: str = ""
    lowest: float = float("inf")
    waited: int = 0


def train(
    model: StochasticAutoencoder,
    loader: Any,
    epochs: int,
    *,
    validation: Any,
    patience: int | None,
    schedule: Schedule | None,
    checkpoint: Path | None,
    every: int,
    progress: bool,
) -> None:
    """Up to ``epochs`` epochs, those of a checkpoint included."""
    if isinstance(loader, Iterator):
        raise ValueError("loader is an iterator, but every epoch reads it: give a list or a loader")
    if every < 1 or epochs < 0:
        raise ValueError(f"every={every} and epochs={epochs}: at least 1 and 0 are needed")
    stored = None
    if checkpoint is not None and checkpoint.exists():
        # Raises before anything of the model is changed.
        stored = checkpoints.opened(checkpoint, model, scheduled=schedule is not None)
    scheduler = _scheduler(schedule, model.optimizer)
    position, model.history = Position(), []
    if stored is not None:
        position = Position(**checkpoints.restore(stored, model, scheduler))
    while position.epoch < epochs and not (
        validation is not None and patience is not None and position.waited >= patience
    ):
        with _order_of_epoch(loader, model, position.epoch):
            _epoch(model, loader, position, scheduler, checkpoint, every, progress)
        _end_epoch(model, validation, position, scheduler)
        if checkpoint is not None:
            checkpoints.write_checkpoint(checkpoint, model, scheduler, asdict(position))


def _epoch(
    model: StochasticAutoencoder,
    loader: Any,
    position: Position,
    scheduler: Any,
    checkpoint: Path | None,
    every: int,
    progress: bool,
) -> None:
    """The batches of an epoch that are not done yet."""
    batches = batches_of(loader)
    for number, batch in enumerate(with_progress(batches, loader) if progress else batches):
        if number < position.batches:
            if number == position.batches - 1 and checkpoints.digest(batch) != position.digest:
                raise ValueError(
                    f"batch {number} of epoch {position.epoch} is not the one that the checkpoint "
                    f"{checkpoint} ends with: give the same data, or delete the file"
                )
            continue
        x = images_of(batch, model)
        position.loss += float(model.step(x)) * len(x)
        position.samples += len(x)
        position.batches = number + 1
        if checkpoint is not None and position.batches % every == 0:
            position.digest = checkpoints.digest(batch)
            checkpoints.write_checkpoint(checkpoint, model, scheduler, asdict(position))


def _end_epoch(
    model: StochasticAutoencoder, validation: Any, position: Position, scheduler: Any
) -> None:
    loss = position.loss / position.samples
    held_out = None if validation is None else validation_loss(model, validation)
    watched = loss if held_out is None else held_out
    model.history.append(Epoch(loss, held_out, model.optimizer.param_groups[0]["lr"]))
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(watched)
    elif scheduler is not None:
        scheduler.step()
    position.waited = 0 if watched < position.lowest else position.waited + 1
    position.lowest = min(watched, position.lowest)
    position.epoch += 1
    position.batches = position.samples = 0
    position.loss, position.digest = 0.0, ""


@torch.no_grad()
def validation_loss(model: StochasticAutoencoder, data: Any) -> float:
    """The loss of a sample, on average over the data, by the same random numbers every time."""
    generator = torch.Generator(model.generator.device).manual_seed(model.seed)
    total, count = 0.0, 0
    for batch in batches_of(data):
        x = images_of(batch, model)
        total += float(model.loss(x, generator)) * len(x)
        count += len(x)
    return total / count


def images_of(batch: Batch, model: StochasticAutoencoder) -> Tensor:
    """The inputs of a batch on the model's device; labels are not used."""
    if len(batch.args) != 1 or batch.kwargs:
        raise ValueError("a batch must be x, or a pair (x, anything), with x one tensor")
    return batch.args[0].to(model.generator.device)


def _scheduler(schedule: Schedule | None, optimizer: Optimizer) -> Any:
    if schedule is None:
        return None
    if schedule == "plateau":
        return ReduceLROnPlateau(optimizer, factor=0.5, patience=5)
    if callable(schedule):
        return schedule(optimizer)
    raise ValueError(f"schedule={schedule!r} must be 'plateau' or a function of the optimiser")


@contextlib.contextmanager
def _order_of_epoch(loader: Any, model: StochasticAutoencoder, epoch: int) -> Iterator[None]:
    """Random numbers of a loader, torch's or its own, that depend on seed and epoch alone."""
    seed = model.seed * 1_000_003 + epoch
    with seeded(seed, model.model):
        for owner in (loader, getattr(loader, "sampler", None)):
            own = getattr(owner, "generator", None)
            if isinstance(own, torch.Generator):
                own.manual_seed(seed)
        yield
