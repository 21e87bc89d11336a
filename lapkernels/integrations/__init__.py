"""lapkernels inside other packages, each of which is needed only for what builds on it.

- laplace-torch: :class:`LaplaceTorchGGN` and :class:`LaplaceTorchEF`, backends of its ``Laplace``,
  and :func:`without_jacobians`, its predictions with no Jacobian in memory.
- Lightning: :class:`OnlineEvidenceCallback`, which tunes the prior while a network is trained.
- scikit-learn: :class:`LaplaceRegressor` and :class:`LaplaceClassifier` for tables.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapkernels.integrations.estimators import LaplaceClassifier, LaplaceRegressor
    from lapkernels.integrations.laplace_torch import LaplaceTorchEF, LaplaceTorchGGN
    from lapkernels.integrations.laplace_torch_predictive import without_jacobians
    from lapkernels.integrations.lightning import OnlineEvidenceCallback

__all__ = [
    "LaplaceClassifier",
    "LaplaceRegressor",
    "LaplaceTorchEF",
    "LaplaceTorchGGN",
    "OnlineEvidenceCallback",
    "without_jacobians",
]

# Name: the module that has it, the package that it needs, and what installs that.
_LAPLACE_TORCH = ("laplace", "pip install laplace-torch")
_SKLEARN = ("scikit-learn", "pip install scikit-learn")
_WHERE: dict[str, tuple[str, tuple[str, str]]] = {
    "LaplaceClassifier": ("estimators", _SKLEARN),
    "LaplaceRegressor": ("estimators", _SKLEARN),
    "LaplaceTorchEF": ("laplace_torch", _LAPLACE_TORCH),
    "LaplaceTorchGGN": ("laplace_torch", _LAPLACE_TORCH),
    "OnlineEvidenceCallback": ("lightning", ("lightning", "pip install lightning")),
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
