r"""The gradients' second moment :math:`E[g^2]` that adaptive optimisers keep for their steps.

Running averages start from zero, v_t = ρ v_{t-1} + (1 - ρ) g², so after t steps they are divided by
1 - ρ^t. Adagrad keeps a plain sum, which is divided by t.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class _Kept:
    """The key of an optimiser's state that holds it, and the decay's key in the group."""

    key: str
    decay: Callable[[dict[str, Any]], float] | None

    def read(self, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """E[g²] of one parameter."""
        steps = float(state["step"])
        kept = state["max_exp_avg_sq"] if group.get("amsgrad") else state[self.key]
        if self.decay is None:
            return (kept - group["initial_accumulator_value"]) / steps
        return kept / (1 - self.decay(group) ** steps)


def _second_beta(group: dict[str, Any]) -> float:
    return float(group["betas"][1])


_KEPT: Mapping[type[Optimizer], _Kept] = {
    **dict.fromkeys(
        (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam),
        _Kept("exp_avg_sq", _second_beta),
    ),
    torch.optim.RMSprop: _Kept("square_avg", lambda group: group["alpha"]),
    torch.optim.Adadelta: _Kept("square_avg", lambda group: group["rho"]),
    torch.optim.Adagrad: _Kept("sum", None),
}


def second_moments(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """E[g²] of each of the parameters, by name, in its shape."""
    kept = next((found for kind, found in _KEPT.items() if isinstance(optimizer, kind)), None)
    if kept is None:
        names = ", ".join(kind.__name__ for kind in _KEPT)
        raise TypeError(
            f"{type(optimizer).__name__} keeps no second moment of the gradients that is known: "
            f"train with one of {names}, or fit lk.Laplace"
        )
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    strangers = [name for name, p in parameters.items() if id(p) not in groups]
    if strangers:
        raise ValueError(f"not in the optimizer: {_list(strangers)}; leave them out with params")
    resting = [name for name, p in parameters.items() if "step" not in optimizer.state.get(p, {})]
    if not resting:
        resting = [name for name, p in parameters.items() if not optimizer.state[p]["step"] > 0]
    if resting:
        raise ValueError(
            f"the optimizer has not stepped {_list(resting)}: train them, or leave them out with "
            "params"
        )
    found = {n: kept.read(optimizer.state[p], groups[id(p)]) for n, p in parameters.items()}
    broken = [name for name, v in found.items() if not v.isfinite().all()]
    if broken:
        raise ValueError(f"the second moment of {_list(broken)} is not finite")
    return found


def _list(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
