"""Saving and loading a posterior."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lapkernels import likelihoods
from lapkernels.curvature.data.batches import check_choice
from lapkernels.curvature.data.contents import plain
from lapkernels.laplace.files import Stored, flatten, read, unflatten, write
from lapkernels.laplace.fitting import Measured
from lapkernels.laplace.predictive.prediction import How
from lapkernels.laplace.prior import Prior
from lapkernels.laplace.structures import STRUCTURES
from lapkernels.laplace.weights import fingerprint_of
from lapkernels.likelihoods import Likelihood

if TYPE_CHECKING:
    from lapkernels.laplace.laplace import Laplace

# Likelihoods that a file may name; nothing else that it names is called.
SAVED = (
    likelihoods.Bernoulli,
    likelihoods.Categorical,
    likelihoods.Gaussian,
    likelihoods.HeteroscedasticGaussian,
    likelihoods.Poisson,
)


def save(posterior: Laplace, path: Path) -> None:
    """Write curvature, prior, noise and what identifies the model."""
    if callable(posterior.output):
        raise ValueError("output= is a function, which no file can hold: give a key or an index")
    measured = posterior._fitted()
    packed = STRUCTURES[posterior.structure].pack(measured.state)
    tensors, data = flatten({"state": packed})
    tensors.update({f"prior:{key}": value for key, value in posterior.prior.values.items()})
    sums = asdict(replace(measured, state=None))
    data.update(
        structure=posterior.structure,
        method=posterior.method,
        params=list(posterior.parameters),
        options={k: v for k, v in posterior.options.items() if k != "entries"},
        output=posterior.output,
        seed=posterior.seed,
        scale=float(posterior.scale),
        temperature=posterior.temperature,
        how=posterior.how,
        groups=posterior.prior.groups,
        fingerprint=sums.pop("fingerprint"),
        measured=sums,
        shapes={name: tuple(p.shape) for name, p in posterior.parameters.items()},
        likelihood=_describe(posterior.fitted_likelihood, tensors),
    )
    write(path, Stored("posterior", tensors, data))


def load(cls: type[Laplace], path: Path, model: nn.Module, likelihood: Any) -> Laplace:
    """Read a posterior and check that it belongs to the model."""
    stored = read(path, "posterior")
    try:
        return _built(cls, path, stored, model, likelihood)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} holds no posterior that this version of lapkernels can read: {error!r}"
        ) from error


def _built(
    cls: type[Laplace], path: Path, stored: Stored, model: nn.Module, likelihood: Any
) -> Laplace:
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
    fingerprint = fingerprint_of(found.model)
    if fingerprint != data["fingerprint"]:
        raise ValueError(
            f"{path} was fitted at other parameter values: load the weights it belongs to first"
        )
    device = next(iter(found.parameters.values())).device
    structure = STRUCTURES[found.structure]
    state = structure.unpack(unflatten("state", stored, device), None)
    wrong = structure.wrong_with(
        state, {name: tuple(p.shape) for name, p in found.parameters.items()}
    )
    if wrong:
        raise ValueError(f"{path}: {wrong}")
    found.measured = Measured(**{**data["measured"], "state": state, "fingerprint": fingerprint})
    found.scale = torch.tensor(float(data["scale"]), dtype=torch.float64, device=device)
    if not (found.scale.isfinite() and found.scale > 0):
        raise ValueError(f"{path}: scale is {data['scale']}, but has to be positive")
    found.how = data.get("how", "linearised")
    check_choice("how", found.how, How)
    found.temperature = float(data.get("temperature", 1.0))
    if not 0 < found.temperature < float("inf"):
        raise ValueError(f"{path}: temperature is {found.temperature}, but has to be positive")
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
    own: dict[str, Any] = {
        name.removeprefix("likelihood:"): value
        for name, value in tensors.items()
        if name.startswith("likelihood:")
    }
    known = {kind.__name__: kind for kind in SAVED}
    if data["class"] not in known:
        raise ValueError(f"the file has the likelihood {data['class']!r}, not one of {list(known)}")
    return known[data["class"]](**data["settings"], **own)
