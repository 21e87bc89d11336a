"""Columns in steps: for collectors that need all that a few columns bring, at every parameter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lapkernels.curvature.backward.autograd import autograd_columns
from lapkernels.curvature.backward.budget import widest
from lapkernels.curvature.backward.columns import Collector, pull_columns
from lapkernels.curvature.passes.passes import Pass
from lapkernels.curvature.recording.graph import Share
from lapkernels.likelihoods import Columns


class StepCollector(Collector):
    """A collector that is told when some columns have reached every parameter."""

    @abstractmethod
    def finish(self) -> None:
        """The columns handed out since the last call are complete."""


@dataclass
class SteppedPass(Pass):
    """A pass that says when a step of columns is complete.

    ``entries`` numbers are kept for each column until then. Autograd brings one column a step.
    """

    entries: int = 0

    @classmethod
    def of(cls, one: Pass, entries: int = 0) -> SteppedPass:
        """The same pass in steps."""
        return cls(**{f.name: getattr(one, f.name) for f in fields(one)}, entries=entries)

    @property
    def step(self) -> int:
        """Number of columns at a time."""
        return 1 if self.by_autograd else self.columns_in_budget

    @property
    def columns_in_budget(self) -> int:
        """Number of columns whose way back stays within the budget, at least one."""
        size = self.prediction.element_size()
        return max(1, self.allowed // max(1, (widest(self.graph) + self.entries) * size))

    def pull(self, count: int, chunk: Callable[[int, int], Tensor], collector: Collector) -> None:
        carry = autograd_columns if self.by_autograd else pull_columns
        for first in range(0, count, self.step):
            carry(self.graph, chunk(first, min(first + self.step, count)), collector)
            if isinstance(collector, StepCollector):
                collector.finish()

    def pull_quadratic(self, columns: Columns, collector: Collector) -> None:
        # Not compressed: columns that were compressed are others for other parameters.
        self.pull(columns.count, columns.chunk, collector)


def carry_whole(one: Pass, s: Tensor, collector: Collector) -> None:
    """Carry columns [V, *output] back so that the collector gets all V at once at a parameter."""
    if not one.by_autograd:
        pull_columns(one.graph, s, collector)
        return
    held = Held()
    autograd_columns(one.graph, s, held)
    held.hand_on(collector)


class Held(Collector):
    """What single columns bring, put together again."""

    def __init__(self) -> None:
        self.shares: dict[int, tuple[Share, list[Tensor]]] = {}
        self.jacobians: dict[tuple[str, int], tuple[slice, list[Tensor]]] = {}

    def share(self, share: Share, s: Tensor) -> None:
        self.shares.setdefault(id(share), (share, []))[1].append(s)

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        self.jacobians.setdefault((name, rows.start), (rows, []))[1].append(g)

    def hand_on(self, collector: Collector) -> None:
        """Give everything to another collector."""
        for share, parts in self.shares.values():
            collector.share(share, torch.cat(parts))
        for (name, _), (rows, parts) in self.jacobians.items():
            collector.jacobian(name, torch.cat(parts), rows)


def jacobian_rows(share: Share, s: Tensor, rows: slice) -> Tensor:
    """G of the parameter of a share for the samples in ``rows``, [V, n, P]."""
    g = share.use.jacobian(s, rows)
    flat = g.flatten(0, 1)
    for step in share.chain:
        flat = step.pull(flat)
    return flat.reshape(*g.shape[:2], -1)
