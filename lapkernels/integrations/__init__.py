"""lapkernels inside other packages, each of which is needed only for what builds on it.

- laplace-torch: :class:`LaplaceTorchGGN` and :class:`LaplaceTorchEF`, backends of its ``Laplace``,
  and :func:`without_jacobians`, its predictions with no Jacobian in memory.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapkernels.integrations.laplace_torch import LaplaceTorchEF, LaplaceTorchGGN
    from lapkernels.integrations.laplace_torch_predictive import without_jacobians

__all__ = ["LaplaceTorchEF", "LaplaceTorchGGN", "without_jacobians"]

# Name: the module that has it, the package that it needs, and what installs that.
_LAPLACE_TORCH = ("laplace", "pip install laplace-torch")
_WHERE: dict[str, tuple[str, tuple[str, str]]] = {
    "LaplaceTorchEF": ("laplace_torch", _LAPLACE_TORCH),
    "LaplaceTorchGGN": ("laplace_torch", _LAPLACE_TORCH),
    "without_jacobians": ("laplace_torch_predictive", _LAPLACE_TORCH),
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, (package, install) = _WHERE[name]
    try:
        found = import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as error:
        raise ImportError(f"{name} needs {package}: {install} ({error})") from error
    return getattr(found, name)
