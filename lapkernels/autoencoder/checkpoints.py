"""The whole state of a training in a file: tensors in safetensors, the rest as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lapkernels.laplace.files import Stored, read, write
from lapkernels.laplace.fitting import digest

if TYPE_CHECKING:
    from lapkernels.autoencoder.interface import StochasticAutoencoder

__all__ = ["digest", "load", "opened", "restore", "save", "write_checkpoint"]
KIND = "autoencoder"


def save(path: Path, model: StochasticAutoencoder) -> None:
    """Write parameters, buffers and the tensors of ``state``."""
    tensors, data = _model_state(model)
    write(path, Stored(KIND, tensors, data))


def load(path: Path, model: StochasticAutoencoder) -> None:
    """Read them back into a model of the same networks and settings."""
    stored = read(path, KIND)
    _check(path, stored, model)
    _set_model(stored, model)


def write_checkpoint(
    path: Path, model: StochasticAutoencoder, scheduler: Any, position: dict[str, Any]
) -> None:
    """Write everything that the next step depends on."""
    tensors, data = _model_state(model)
    optimizer = model.optimizer.state_dict()
    settings: dict[str, dict[str, Any]] = {}
    for index, entries in optimizer["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer:{index}:{key}"] = value
            else:
                settings.setdefault(str(index), {})[key] = value
    tensors["generator"] = model.generator.get_state()
    data.update(
        optimizer={"settings": settings, "groups": optimizer["param_groups"]},
        scheduler=None if scheduler is None else scheduler.state_dict(),
        position=position,
        history=[vars(epoch) for epoch in model.history],
    )
    write(path, Stored(KIND, tensors, data))


def opened(path: Path, model: StochasticAutoencoder, *, scheduled: bool) -> Stored:
    """Read a checkpoint from which this model's training can resume."""
    stored = read(path, KIND)
    _check(path, stored, model)
    if "position" not in stored.data:
        raise ValueError(f"{path} was written by save(), and is no checkpoint of a training")
    if scheduled != (stored.data["scheduler"] is not None):
        raise ValueError(f"the training of {path} had another schedule: give the same one")
    return stored


def restore(stored: Stored, model: StochasticAutoencoder, scheduler: Any) -> dict[str, Any]:
    """Restore everything; returns the position."""
    from lapkernels.autoencoder.training import Epoch

    data = stored.data
    _set_model(stored, model)
    state: dict[int, dict[str, Any]] = {
        int(index): dict(entries) for index, entries in data["optimizer"]["settings"].items()
    }
    for name, value in stored.tensors.items():
        owner, _, rest = name.partition(":")
        if owner == "optimizer":
            index, key = rest.split(":")
            state.setdefault(int(index), {})[key] = value
    model.optimizer.load_state_dict({"state": state, "param_groups": data["optimizer"]["groups"]})
    if scheduler is not None:
        scheduler.load_state_dict(data["scheduler"])
    model.generator.set_state(stored.tensors["generator"])
    model.history = [Epoch(**entry) for entry in data["history"]]
    return data["position"]


def _model_state(model: StochasticAutoencoder) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {f"model:{name}": value for name, value in model.model.state_dict().items()}
    tensors.update({f"state:{name}": value for name, value in model.state().items()})
    return tensors, {"identity": _identity(model)}


def _identity(model: StochasticAutoencoder) -> dict[str, str]:
    """What must be the same for a file to belong to a model."""
    return {
        "autoencoder": type(model).__name__,
        "likelihood": repr(model.likelihood),
        "settings": model.settings(),
        "optimizer": type(model.optimizer).__name__,
    }


def _check(path: Path, stored: Stored, model: StochasticAutoencoder) -> None:
    for key, value in _identity(model).items():
        known = stored.data["identity"][key]
        if known != value:
            raise ValueError(
                f"{path} belongs to another model, its {key} is {known!r} and not {value!r}: "
                "delete it, or name another file"
            )
    for name, value in _model_state(model)[0].items():
        found = stored.tensors.get(name)
        if found is None or found.shape != value.shape:
            shape = "missing" if found is None else tuple(found.shape)
            raise ValueError(f"{path}: {name} is {shape}, in the model it is {tuple(value.shape)}")


@torch.no_grad()
def _set_model(stored: Stored, model: StochasticAutoencoder) -> None:
    for name, value in _model_state(model)[0].items():
        value.copy_(stored.tensors[name])
