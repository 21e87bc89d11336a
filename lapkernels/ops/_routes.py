"""The way a call takes: straight to a kernel, through torch's dispatcher, or to the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


class Route(Enum):
    """DIRECT skips the dispatcher, which costs more than a small op itself."""

    DIRECT = "nothing to differentiate or trace"
    DISPATCHER = "autograd, tracing or a tensor subclass is at work"
    REFERENCE = "torch.func or forward mode is at work, which only plain torch ops know"


def route(tensors: Sequence[Tensor]) -> Route:
    """The route for a call on these tensors."""
    if torch.compiler.is_compiling():
        return Route.DISPATCHER
    wants_grad = torch.is_grad_enabled()
    # Outside of forward mode its level is -1, and no tensor has a tangent.
    has_tangents = getattr(forward_ad, "_current_level", 0) >= 0
    found = Route.DIRECT
    for tensor in tensors:
        kind = type(tensor)
        if kind is not Tensor and kind is not torch.nn.Parameter:
            return Route.DISPATCHER
        try:
            tensor.data_ptr()
        except RuntimeError:  # torch.func's wrappers have no memory of their own
            return Route.REFERENCE
        if has_tangents and forward_ad.unpack_dual(tensor).tangent is not None:
            return Route.REFERENCE
        if wants_grad and tensor.requires_grad:
            found = Route.DISPATCHER
    return found


def needs_graph(*tensors: Tensor | None) -> bool:
    """Whether autograd is to see a call on these tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def is_tensor_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], Tensor)


def tensor_finder(arguments: str) -> Callable[[Sequence[Any]], list[Tensor]]:
    """``tensors_of`` for the arguments of one schema, which says where tensors are."""
    kinds = [argument.split()[0] for argument in arguments.split(", ")]
    if "Tensor[]" in kinds:
        return tensors_of
    places = [place for place, kind in enumerate(kinds) if kind.startswith("Tensor")]
    return lambda values: [values[place] for place in places if values[place] is not None]


def tensors_of(values: Sequence[Any]) -> list[Tensor]:
    """All tensors among the values, those in lists included."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif is_tensor_list(value):
            found.extend(value)
    return found
