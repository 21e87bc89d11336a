"""Models whose calls depend on module settings alone, so that they are replayed without running.

The ``forward`` of torch's own layers reads its input, the layer's parameters and buffers, and the
attributes that the class names as its ``__constants__``; a ``Sequential`` calls its layers in
order. A model with hooks, overridden methods or any other module may do anything.
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
# The methods that a call of such a layer runs.
_METHODS = ("forward", "_conv_forward", "_output_padding", "_check_input_dim", "__iter__")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_hooks = attrgetter(*_HOOKS)
_Read = Callable[[Any], Any]


def _readers(layer: type[nn.Module]) -> tuple[_Read, Any, _Read]:
    """What reads a layer's methods, these as they are now, and what reads its settings."""
    methods = attrgetter(*(name for name in _METHODS if hasattr(layer, name)))
    constants: Iterable[str] = getattr(layer, "__constants__", ())
    return methods, methods(layer), attrgetter("training", *constants)


_READERS: dict[type[nn.Module], tuple[_Read, Any, _Read]] = {
    layer: _readers(layer) for layer in LAYERS
}


def settings_of(modules: Iterable[nn.Module]) -> list[Any] | None:
    """All settings of these modules, in the order of their paths; None if other things matter."""
    # Global module hooks. If torch lacks one of these names, there may be others.
    if any([getattr(every_module, f"_global{name}", True) for name in _HOOKS]):
        return None
    found: list[Any] = []
    for module in modules:
        kind = type(module)
        readers = _READERS.get(kind)
        if readers is None or any(_hooks(module)):
            return None
        methods, known, settings = readers
        if methods(kind) != known or not vars(module).keys().isdisjoint(_METHODS):
            return None
        found.append((kind, settings(module)))
    return found
