"""Which functions are measured on which networks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import lapkernels as lk

Run = Callable[[nn.Module, Any, Any, Any], Any]
RANK = 2
# Parameters whose Hessian takes seconds.
FEW = re.compile(r"^[02]\.bias$|^blocks\.0\.before\.weight$")


def _of_data(function: Callable[..., Any], **options: Any) -> Run:
    def run(model: nn.Module, x: Tensor, y: Tensor, likelihood: str) -> Any:
        return function(model, (x, y), likelihood=likelihood, **options)

    return run


def _of_variance(function: Callable[..., Any], **options: Any) -> Run:
    """The variances are part of what is given, one and the same number for all entries."""

    def run(model: nn.Module, x: Tensor, y: Tensor, likelihood: str) -> Any:
        one = torch.ones(())
        variance = {name: one.expand(p.shape) for name, p in model.named_parameters()}
        return function(model, x, variance, **options)

    return run


def _product(model: nn.Module, x: Tensor, y: Tensor, likelihood: str) -> Any:
    vector = {name: torch.ones(()).expand(p.shape) for name, p in model.named_parameters()}
    return lk.ggn_product(model, (x, y), vector, likelihood)


RUNS: dict[str, Run] = {
    "diag exact": _of_data(lk.diag),
    "diag exact autograd": _of_data(lk.diag, route="autograd"),
    "diag exact least": _of_data(lk.diag, memory_budget=1),
    "diag exact generous": _of_data(lk.diag, memory_budget=1 << 30),
    "diag mc": _of_data(lk.diag, method="mc"),
    "diag mc signs": _of_data(lk.diag, method="mc", sampler="signs"),
    "diag mc autograd": _of_data(lk.diag, method="mc", route="autograd"),
    "diag empirical": _of_data(lk.diag, method="empirical"),
    "diag approx": _of_data(lk.diag, method="approx"),
    "diag mixed": _of_data(lk.diag, method="mixed"),
    "diag hessian": _of_data(lk.diag, method="hessian", params=FEW),
    "kron mc": _of_data(lk.kron),
    "kron mc reduce": _of_data(lk.kron, sharing="reduce"),
    "kron mc autograd": _of_data(lk.kron, route="autograd"),
    "kron exact": _of_data(lk.kron, method="exact"),
    "kron exact reduce": _of_data(lk.kron, method="exact", sharing="reduce"),
    "kron empirical": _of_data(lk.kron, method="empirical"),
    "kron_corrected mc": _of_data(lk.kron_corrected),
    "kron_corrected exact": _of_data(lk.kron_corrected, method="exact"),
    "blocks layer": _of_data(lk.blocks, by="layer"),
    "blocks neuron": _of_data(lk.blocks, by="neuron"),
    "blocks kernel": _of_data(lk.blocks, by="kernel"),
    "full": _of_data(lk.full),
    "low_rank": _of_data(lk.low_rank, rank=RANK, tolerance=0.1),
    "low_rank to the end": _of_data(lk.low_rank, rank=RANK, tolerance=1e-3),
    "ggn_product": _product,
    "predictive_variance": _of_variance(lk.predictive_variance),
    "predictive_variance autograd": _of_variance(lk.predictive_variance, route="autograd"),
    "predictive_covariance": _of_variance(lk.predictive_covariance),
    "propagated_variance": _of_variance(lk.propagated_variance),
}
# Results that are larger than the parameters by nature.
LARGE = ("kron", "blocks", "full", "predictive_covariance")
DIAGONALS = tuple(f"diag {x}" for x in (
    "exact", "exact autograd", "mc", "mc signs", "mc autograd", "empirical", "approx", "mixed",
))  # fmt: skip
KRONECKER = tuple(f"kron {x}" for x in (
    "mc", "mc reduce", "mc autograd", "exact", "exact reduce", "empirical",
))  # fmt: skip
PREDICTIVE = ("predictive_variance", "predictive_covariance", "propagated_variance")
LAYERS = (*DIAGONALS, *KRONECKER, "kron_corrected mc", "blocks kernel", "ggn_product", *PREDICTIVE)

# Functions by network and number of outputs: all that take seconds and have results of a size to
# be measured beside.
SELECTED: dict[tuple[str, int], tuple[str, ...]] = {
    ("images", 10): tuple(run for run in RUNS if run != "low_rank to the end"),
    ("images", 1000): ("diag exact", "diag mc signs", "kron exact", "propagated_variance"),
    ("matrices", 10): (*LAYERS, "predictive_variance autograd"),
    ("matrices", 1000): ("diag exact", "diag mc signs", "kron exact", *PREDICTIVE),
    ("matrix", 128): ("low_rank to the end",),
    ("tied", 10): (*DIAGONALS, "blocks kernel", "ggn_product", "predictive_variance"),
    ("tied", 1000): ("diag mc signs",),
    ("sequence", 10): (*LAYERS, "diag hessian", "blocks neuron", "low_rank"),
    ("sequence", 1000): ("diag exact", "diag mc signs", "propagated_variance"),
    ("skips", 10): LAYERS,
    ("skips", 1000): ("diag exact", "kron exact"),
    ("unet", 1024): ("diag exact", "diag mc", "diag approx", "diag mixed", "kron exact"),
    ("decoder", 1024): ("diag exact", "diag mc", "diag approx", "kron exact"),
}
CASES = tuple(f"{network} {v} {run}" for (network, v), runs in SELECTED.items() for run in runs)
