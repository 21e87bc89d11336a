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

__all__ = ["digest", "load", "restore", "save", "write_checkpoint"]
KIND = "autoencoder"


def save(path: Path, model: StochasticAutoencoder) -> None:
    """Write parameters, buffers and what else ``state`` names."""
    tensors, data = _model_state(model)
    write(path, Stored(KIND, tensors, data))


def load(path: Path, model: StochasticAutoencoder) -> None:
    """Read them back into a model of the same networks and settings."""
    stored = read(path, KIND)
    _check(path, stored.data, model)
    _set_model(path, stored, model)


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


def restore(path: Path, model: StochasticAutoencoder, scheduler: Any) -> dict[str, Any]:
    """Set everything back; returns the position."""
    from lapkernels.autoencoder.training import Epoch

    stored = read(path, KIND)
    _check(path, stored.data, model)
    data = stored.data
    if "position" not in data:
        raise ValueError(f"{path} was written by save(), and is no checkpoint of a training")
    if (scheduler is None) != (data["scheduler"] is None):
        raise ValueError(f"the training of {path} had another schedule: give the same one")
    _set_model(path, stored, model)
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
    """What has to be the same for a file to belong to a model."""
    return {
        "autoencoder": type(model).__name__,
        "likelihood": repr(model.likelihood),
        "settings": model.settings(),
        "optimizer": type(model.optimizer).__name__,
    }


def _check(path: Path, data: dict[str, Any], model: StochasticAutoencoder) -> None:
    for key, value in _identity(model).items():
        if data["identity"][key] != value:
            raise ValueError(
                f"{path} belongs to another model, its {key} is {data['identity'][key]!r} and not "
                f"{value!r}: delete it, or name another file"
            )


@torch.no_grad()
def _set_model(path: Path, stored: Stored, model: StochasticAutoencoder) -> None:
    targets = {f"model:{name}": value for name, value in model.model.state_dict().items()}
    targets.update({f"state:{name}": value for name, value in model.state().items()})
    for name, value in targets.items():
        found = stored.tensors.get(name)
        if found is None or found.shape != value.shape:
            shape = "missing" if found is None else tuple(found.shape)
            raise ValueError(f"{path}: {name} is {shape}, in the model it is {tuple(value.shape)}")
    for name, value in targets.items():
        value.copy_(stored.tensors[name])
