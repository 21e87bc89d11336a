"""What models of torch's own layers call depends on: settings, and nothing that has to be run.

The ``forward`` of these layers reads its input, the layer's parameters and buffers, and the
attributes that the class names as its ``__constants__``; a ``Sequential`` calls one layer after the
other. A model with hooks, with a ``forward`` of its own or with any other module may do anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from torch import nn
from torch.nn.modules import module as every_module

LAYERS: tuple[type[nn.Module], ...] = (
    *(nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Embedding),
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softmax, nn.LogSoftmax),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.Upsample),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_hooks = attrgetter(*_HOOKS)


def _reader(layer: type[nn.Module]) -> tuple[Any, Callable[[nn.Module], Any]]:
    """The layer's ``forward`` as it is now, and what reads its settings."""
    names: Iterable[str] = getattr(layer, "__constants__", ())
    return layer.forward, attrgetter("training", *names)


_READERS: dict[type[nn.Module], tuple[Any, Callable[[nn.Module], Any]]] = {
    layer: _reader(layer) for layer in LAYERS
}


def settings_of(modules: Iterable[nn.Module]) -> list[Any] | None:
    """All that the calls of a model with these modules depend on, in the order of their paths.

    None if that may be more than settings.
    """
    # Hooks on all modules of the process. Where torch has none of that name, there may be others.
    if any(getattr(every_module, f"_global{name}", True) for name in _HOOKS):
        return None
    found: list[Any] = []
    for module in modules:
        kind = type(module)
        forward, read = _READERS.get(kind, (None, None))
        if read is None or kind.forward is not forward or "forward" in vars(module):
            return None
        if any(_hooks(module)):
            return None
        found.append((kind, read(module)))
    return found
