"""How many columns may be on their way back at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from lapkernels.curvature.plan import Plan, Section


def widest(plan: Plan, section: Section | None = None) -> int:
    """Most numbers that one column has alive at a time on its way back."""
    section = section or Section.whole(plan)
    at = {id(section.entry): prod(section.entry.shape)}
    most = sum(at.values())
    for position in reversed(range(section.first, section.last)):
        node = plan.sample_nodes[position]
        if position in plan.overwrites:
            at.pop(id(node.outputs[0]), None)
        for value in node.inputs:
            if value.active and value.samples is not None:
                at[id(value)] = prod(value.shape)
        most = max(most, sum(at.values()))
        for value in node.outputs:
            at.pop(id(value), None)
    return most


def column_chunks(
    plan: Plan, count: int, budget: int | None, size: int, section: Section | None = None
) -> Iterator[tuple[int, int]]:
    """Ranges of columns such that their way back stays within the budget in bytes."""
    allowed = default_budget(plan, size) if budget is None else budget
    step = max(1, allowed // max(1, widest(plan, section) * size))
    for first in range(0, count, step):
        yield first, min(first + step, count)


def default_budget(plan: Plan, size: int) -> int:
    """Half as much as the activations of the forward pass, and at least 16 MiB.

    The other half is for what ops need beside the columns.
    """
    return max(plan.trace.entries * size // 2, 1 << 24)
