"""A posterior to a file and back."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lapkernels import likelihoods
from lapkernels.curvature.selection import plain
from lapkernels.curvature.state import fingerprint
from lapkernels.laplace.files import Stored, flatten, read, unflatten, write
from lapkernels.laplace.fitting import Measured
from lapkernels.laplace.prior import Prior
from lapkernels.laplace.structures import STRUCTURES
from lapkernels.likelihoods import Likelihood

if TYPE_CHECKING:
    from lapkernels.laplace.laplace import Laplace


def save(posterior: Laplace, path: Path) -> None:
    """Write curvature, prior, noise and what is needed to check them."""
    if callable(posterior.output):
        raise ValueError("output= is a function, which no file can hold: give a key or an index")
    measured = posterior._fitted()
    packed = STRUCTURES[posterior.structure].pack(measured.state)
    tensors, data = flatten({"state": packed})
    tensors.update({f"prior:{key}": value for key, value in posterior.prior.values.items()})
    data.update(
        structure=posterior.structure,
        method=posterior.method,
        params=list(posterior.parameters),
        options={k: v for k, v in posterior.options.items() if k != "entries"},
        output=posterior.output,
        seed=posterior.seed,
        scale=float(posterior.scale),
        groups=posterior.prior.groups,
        measured=asdict(replace(measured, state=None)),
        fingerprint=fingerprint(posterior.parameters),
        shapes={name: tuple(p.shape) for name, p in posterior.parameters.items()},
        likelihood=_describe(posterior.fitted_likelihood, tensors),
    )
    write(path, Stored("posterior", tensors, data))


def load(cls: type[Laplace], path: Path, model: nn.Module, likelihood: Any) -> Laplace:
    """Read a posterior and check that it belongs to the model."""
    stored = read(path, "posterior")
    data = stored.data
    known = dict(plain(model).named_parameters())
    for name, shape in data["shapes"].items():
        if name not in known or tuple(known[name].shape) != tuple(shape):
            found = tuple(known[name].shape) if name in known else "missing"
            raise ValueError(f"{path}: {name} has shape {tuple(shape)}, in the model it is {found}")
    prior = Prior(
        {key: tuple(names) for key, names in data["groups"].items()},
        {key: stored.tensors[f"prior:{key}"] for key in data["groups"]},
    )
    found = cls(
        model,
        _likelihood(data["likelihood"], stored.tensors) if likelihood is None else likelihood,
        data["structure"],
        data["method"],
        data["params"],
        prior,
        output=data["output"],
        seed=data["seed"],
        **data["options"],
    )
    if fingerprint(found.parameters) != data["fingerprint"]:
        raise ValueError(
            f"{path} was fitted at other parameter values: load the weights it belongs to first"
        )
    device = next(iter(found.parameters.values())).device
    state = STRUCTURES[found.structure].unpack(unflatten("state", stored, device), None)
    found.measured = Measured(**{**data["measured"], "state": state})
    found.scale = torch.tensor(data["scale"], dtype=torch.float64)
    return found


def _describe(likelihood: Likelihood, tensors: dict[str, Tensor]) -> dict[str, Any] | None:
    """A likelihood's class and settings; None for a loss of the user's own."""
    if isinstance(likelihood, likelihoods.LossFunction):
        return None
    settings: dict[str, Any] = {}
    for field in fields(likelihood):  # pyright: ignore[reportArgumentType]
        value = getattr(likelihood, field.name)
        if isinstance(value, Tensor):
            tensors[f"likelihood:{field.name}"] = value
        else:
            settings[field.name] = value
    return {"class": type(likelihood).__name__, "settings": settings}


def _likelihood(data: dict[str, Any] | None, tensors: dict[str, Tensor]) -> Likelihood:
    if data is None:
        raise ValueError("the file holds no likelihood, as it was a loss: give likelihood=")
    own = {
        name.removeprefix("likelihood:"): value
        for name, value in tensors.items()
        if name.startswith("likelihood:")
    }
    return getattr(likelihoods, data["class"])(**data["settings"], **own)
