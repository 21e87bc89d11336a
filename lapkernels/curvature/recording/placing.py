"""Weights with a row for each sample, such as an embedding looked up at indices [N, T] of a buffer.

They are made of parameters and constants, so nothing tells where samples lie in them until an op
adds them to data. Then the ops that made them are recorded again, with the rows of their constants
as samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from lapkernels.curvature.errors import SamplesLost
from lapkernels.curvature.recording.aliasing import Memory, storage_of
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.rules import Rule, Samples
from lapkernels.rules.base.lift import Lift
from lapkernels.rules.shape import Movement

# Ops that are layers if a constant is their data, also in a batch of one.
LAYERS = ("aten::mm", "aten::addmm", "aten::linear")
# Ways to place the operands of one op that are tried.
TRIED = 32


@dataclass(frozen=True)
class Made:
    """An op that made a weight: its node and its tensors.

    ``rule_of`` makes the rule from the values of the operands and from what is ``given``: the
    builder of the op and its arguments.
    """

    node: Node
    tensors: Sequence[Tensor]
    outputs: Sequence[Tensor]
    rule_of: Callable[..., Rule]
    given: tuple[Any, ...]


@dataclass
class Placing:
    """The ops that made weights, by the id of their first result, and the memory written to."""

    nodes: list[Node]
    memory: Memory
    edges: bool
    made: dict[int, Made] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)

    def add(
        self,
        node: Node,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        rule_of: Callable[..., Rule],
        given: tuple[Any, ...],
    ) -> None:
        """Remember how a weight was made."""
        self.made[id(node.outputs[0])] = Made(node, tensors, outputs, rule_of, given)

    def note_write(self, tensor: Tensor) -> None:
        """No rule that keeps this memory can be made again."""
        self.written.add(storage_of(tensor))

    def place(self, value: Value, where: Samples, reader: Node | None = None) -> bool:
        """Record the ops that made a weight again, so that its samples lie at ``where``.

        False if that cannot be done, also if another op than ``reader`` has read it as a weight.
        """
        made = self.made.get(id(value))
        if made is None or self._is_read(value, reader):
            return False
        node = made.node
        if where.count == 1 and not isinstance(node.rule, Movement) and node.name not in LAYERS:
            return False
        if node.name == "aten::expand" and _is_repeated(node, where.dim):
            rule = made.rule_of(node.inputs, Lift, made.tensors[:1], {"samples": where})
            return self._commit(made, node.inputs, rule)
        known = self.memory.kept_count
        for values in islice(self._placed(made, where), TRIED):
            try:
                rule = made.rule_of(values, *made.given)
            except SamplesLost:
                continue
            if any(storage_of(one) in self.written for _, one in self.memory.kept_since(known)):
                return False
            if rule.samples[0] == where and self._place_operands(node, values):
                return self._commit(made, values, rule)
        return False

    def place_any(self, values: Sequence[Value], count: int) -> bool:
        """Place one of the weights among the operands of an op that cannot follow the samples."""
        return any(
            self.place(value, Samples(count, dim))
            for value in values
            if value.active and value.samples is None
            for dim, size in enumerate(value.shape)
            if size == count
        )

    def _placed(self, made: Made, where: Samples) -> Iterator[list[Value]]:
        """Ways to place the operands, of which at least one has samples."""
        size = where.count * where.outer * where.inner
        ways: list[list[Samples | None]] = []
        for value in made.node.inputs:
            dims = [d for d, length in enumerate(value.shape) if length == size]
            found = [Samples(where.count, d, where.outer, where.inner) for d in dims]
            ways.append([None, *found] if value.parameter is None else [None])
        for way in product(*ways):
            if any(way):
                yield [
                    value if one is None else _at(value, one)
                    for value, one in zip(made.node.inputs, way, strict=True)
                ]

    def _place_operands(self, node: Node, values: Sequence[Value]) -> bool:
        """Place the operands that are weights themselves."""
        return all(
            self.place(old, new.samples, node)
            for old, new in zip(node.inputs, values, strict=True)
            if old.active and new.samples is not None
        )

    def _commit(self, made: Made, values: Sequence[Value], rule: Rule) -> bool:
        node = made.node
        node.rule = rule
        # Weights were placed themselves.
        node.inputs = [
            old if old.active else new for old, new in zip(node.inputs, values, strict=True)
        ]
        for value, samples in zip(node.outputs, rule.samples, strict=True):
            value.samples = samples
        if self.edges and rule.uses:
            node.edges = [
                get_gradient_edge(out) if out.requires_grad else None for out in made.outputs
            ]
        return True

    def _is_read(self, value: Value, reader: Node | None) -> bool:
        return any(one is value for node in self.nodes if node is not reader for one in node.inputs)


def _at(value: Value, samples: Samples) -> Value:
    """A value with samples."""
    return replace(value, samples=samples)


def _is_repeated(node: Node, dim: int) -> bool:
    """Whether an expansion makes a dimension, or repeats the one entry along it."""
    old = node.inputs[0].shape
    dim -= len(node.outputs[0].shape) - len(old)
    return dim < 0 or old[dim] == 1
