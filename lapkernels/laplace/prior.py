r"""Gaussian priors :math:`N(0, \Lambda^{-1})`: a precision for each group of parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.random_state import seeded
from lapkernels.laplace.normalised import normalised_groups

# At least so many values are drawn to measure the variance of an initialiser.
DRAWS = 4_000


@dataclass(frozen=True)
class Prior:
    """Independent parameters with mean zero.

    ``groups`` has the names of the parameters of each group, ``values`` its precision in float64: a
    number, or for a group of one parameter also a tensor of its shape. A posterior keeps it on the
    device of its parameters.
    """

    groups: dict[str, tuple[str, ...]]
    values: dict[str, Tensor]

    def __post_init__(self) -> None:
        if set(self.groups) != set(self.values):
            raise ValueError(f"values are of {list(self.values)}, groups of {list(self.groups)}")
        for key, value in self.values.items():
            if not bool((value.isfinite() & (value > 0)).all()):
                raise ValueError(
                    f"the prior precision of {key or 'all parameters'} holds "
                    f"{float(value.min()):.3g}: positive finite numbers are needed"
                )
            if value.dim() and len(self.groups[key]) != 1:
                raise ValueError(
                    f"the prior precision of {key or 'all parameters'} has shape "
                    f"{tuple(value.shape)}, but is shared by several parameters: give one number, "
                    "or a dict with a tensor of its shape for each parameter"
                )
        names = [name for names in self.groups.values() for name in names]
        if len(set(names)) != len(names):
            raise ValueError("a parameter is in two groups of the prior")

    @classmethod
    def of_groups(cls, groups: Mapping[str, Iterable[str]], value: float = 1.0) -> Prior:
        """One number for each group of parameter names, all the same to begin with."""
        found = {key: tuple(names) for key, names in groups.items()}
        return cls(found, {key: _number(value) for key in found})

    @classmethod
    def normalised(cls, model: nn.Module, x: object, value: float = 1.0) -> Prior:
        """One number for each group of weights that a norm behind them makes scale-free.

        All other parameters share one more, "rest". ``x`` is a batch of inputs, for the trial
        of invariance.
        """
        groups = normalised_groups(model, x)
        grouped = {name for names in groups.values() for name in names}
        rest = tuple(name for name, _ in model.named_parameters() if name not in grouped)
        return cls.of_groups({**groups, **({"rest": rest} if rest else {})}, value)

    @classmethod
    def from_initialiser(cls, model: nn.Module, constant: float = 1.0, seed: int = 0) -> Prior:
        """Precision 1 / variance of what ``reset_parameters`` gives each parameter.

        The Gaussian with the initialiser's second moment, measured by drawing from it. Parameters
        that start at a constant, such as a norm's, have the precision ``constant``.
        """
        values: dict[str, Tensor] = {}
        with seeded(seed, model):
            for path, module in model.named_modules():
                own = dict(module.named_parameters(recurse=False))
                if own:
                    spread = _initial_spread(path, module, own)
                    prefix = f"{path}." if path else ""
                    for name, variance in spread.items():
                        value = 1 / variance if variance > 0 else constant
                        values[prefix + name] = _number(value)
        known = {name: values[name] for name, _ in model.named_parameters()}
        return cls({name: (name,) for name in known}, known)

    @property
    def precision(self) -> dict[str, Tensor]:
        """Λ by parameter name: a number, or a tensor of its shape."""
        return {name: self.values[key] for key, names in self.groups.items() for name in names}

    def with_values(self, values: Mapping[str, Tensor]) -> Prior:
        """The same groups with other precisions."""
        return replace(self, values=dict(values))

    def to(self, parameters: Mapping[str, Tensor]) -> Prior:
        """The prior of these parameters alone, on their device; each must be in a group."""
        groups = {
            key: tuple(name for name in names if name in parameters)
            for key, names in self.groups.items()
        }
        groups = {key: names for key, names in groups.items() if names}
        missing = set(parameters) - {name for names in groups.values() for name in names}
        if missing:
            raise ValueError(f"the prior has no precision for {sorted(missing)}")
        for key, names in groups.items():
            shape = parameters[names[0]].shape
            if self.values[key].dim() and self.values[key].shape != shape:
                raise ValueError(
                    f"the prior precision of {names[0]} has shape {tuple(self.values[key].shape)}, "
                    f"but the parameter {tuple(shape)}"
                )
        values = {
            key: self.values[key].to(parameters[names[0]].device) for key, names in groups.items()
        }
        return Prior(groups, values)


Given = float | str | Mapping[str, float | Tensor] | Prior


def resolve_prior(given: Given, parameters: Mapping[str, Tensor]) -> Prior:
    """The prior from what users give.

    - a number: one precision for all;
    - "layer", "parameter" or "entry": one for each module, tensor or entry, 1 to begin with;
    - a dict from names of parameters or modules to numbers or tensors;
    - a ``Prior``.
    """
    if isinstance(given, Prior):
        return given.to(parameters)
    if isinstance(given, str):
        return _by_word(given, parameters).to(parameters)
    if not isinstance(given, Mapping):
        return Prior({"": tuple(parameters)}, {"": _number(given)}).to(parameters)
    groups: dict[str, tuple[str, ...]] = {}
    for key in given:
        found = tuple(n for n in parameters if n == key or n.startswith(f"{key}."))
        if not found:
            raise ValueError(f"prior: {key!r} names no parameter or module that is uncertain")
        groups[key] = found
    return Prior(groups, {key: _number(value) for key, value in given.items()}).to(parameters)


def _by_word(word: str, parameters: Mapping[str, Tensor]) -> Prior:
    if word == "layer":
        groups: dict[str, tuple[str, ...]] = {}
        for name in parameters:
            path = name.rpartition(".")[0]
            groups[path] = (*groups.get(path, ()), name)
        return Prior.of_groups(groups)
    if word == "parameter":
        return Prior.of_groups({name: (name,) for name in parameters})
    if word == "entry":
        ones = {n: torch.ones_like(p, dtype=torch.float64) for n, p in parameters.items()}
        return Prior({name: (name,) for name in parameters}, ones)
    raise ValueError(
        f"prior={word!r}: a number, 'layer', 'parameter', 'entry' or a Prior is needed"
    )


def _number(value: float | Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    return value.detach().double().clone()


def _initial_spread(
    path: str, module: nn.Module, own: Mapping[str, nn.Parameter]
) -> dict[str, float]:
    """E[w²] - E[w]² over draws of the initialiser, for each parameter of one module."""
    reset = getattr(module, "reset_parameters", None)
    if reset is None:
        raise ValueError(
            f"{path or 'the model'} ({type(module).__name__}) has parameters but no "
            "reset_parameters, so its initialiser is unknown: give their precision in a dict"
        )
    fresh = copy.deepcopy(module)
    smallest = min(parameter.numel() for parameter in own.values())
    draws: dict[str, list[Tensor]] = {name: [] for name in own}
    for _ in range(-(-DRAWS // smallest)):
        fresh.reset_parameters()  # pyright: ignore[reportCallIssue]
        for name in own:
            draws[name].append(fresh.get_parameter(name).detach().double().flatten().clone())
    return {name: float(torch.cat(parts).var(correction=0)) for name, parts in draws.items()}
