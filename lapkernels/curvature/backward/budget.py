"""How many columns may be on their way back at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from lapkernels.curvature.recording.graph import Plan, Section, once_per_plan
from lapkernels.curvature.recording.trace import Value
from lapkernels.rules.affine import linear_matrix

# Shared columns are many and small: in chunks of so many bytes they stay in cache.
CACHE = 3 << 21


@once_per_plan
def widest(plan: Plan, section: Section | None = None, shared: int = 0) -> int:
    """Most numbers that one column has alive at a time on its way back.

    Where weights have several uses the columns at them wait for each other, and then have one
    sample's Jacobian at least, of the uses so far and of the next one. ``shared`` is the number of
    columns at a time if they are the same for all samples.
    """
    section = section or Section.whole(plan)
    once = {id(section.entry)} if shared else set()
    at = {id(section.entry): _entries(section.entry, once)}
    most = sum(at.values())
    jacobians: dict[int, int] = {}
    for position in reversed(range(section.first, section.last)):
        node = plan.sample_nodes[position]
        if position in plan.overwrites:
            at.pop(id(node.outputs[0]), None)
        stays = id(node.outputs[0]) in once and linear_matrix(node.rule) is not None
        below = plan.layer_below(position, section) if id(node.outputs[0]) in once else None
        matrix = None if below is None else linear_matrix(plan.sample_nodes[below].rule)
        scales = matrix is not None and 2 * shared >= matrix.shape[1]
        for value in node.inputs:
            if value.active and value.samples is not None:
                at[id(value)] = _entries(value, {id(value)} if stays or scales else set())
                if stays:
                    once.add(id(value))
        most = max(most, sum(at.values()))
        together = [node.inputs[i] for i in node.rule.uses if (position, i) not in plan.shares]
        jacobians.update((id(value), prod(value.shape)) for value in together)
        for value in () if together else node.outputs:
            at.pop(id(value), None)
    return max(most, sum(at.values()) + 2 * sum(jacobians.values()))


def _entries(value: Value, once: set[int]) -> int:
    """Numbers of one column at a value; those in ``once`` have the same for all samples."""
    assert value.samples is not None
    return prod(value.shape) // (value.samples.count if id(value) in once else 1)


def column_chunks(
    plan: Plan,
    count: int,
    budget: int | None,
    size: int,
    section: Section | None = None,
    shared: bool = False,
) -> Iterator[tuple[int, int]]:
    """Ranges of columns, about equal, such that their way back stays within the budget in bytes."""
    allowed = default_budget(plan, size) if budget is None else budget
    if shared:
        allowed = min(allowed, CACHE)
    step = max(1, count)
    # Fewer columns at a time may be ones that are no longer worth sharing.
    for _ in range(2 if shared else 1):
        most = widest(plan, section, step if shared else 0)
        step = min(step, max(1, allowed // max(1, most * size)))
    step = -(-count // max(1, -(-count // step)))
    for first in range(0, count, max(1, step)):
        yield first, min(first + step, count)


def default_budget(plan: Plan, size: int) -> int:
    """Half as much as the activations of the forward pass, and at least 16 MiB.

    The other half is for what ops need beside the columns.
    """
    return max(plan.trace.entries * size // 2, 1 << 24)
