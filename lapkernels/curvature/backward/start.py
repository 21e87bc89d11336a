"""Where columns that are windows start: the image behind ops that only rearrange or scale entries.

Each column is zero outside one set of entries of the output: one entry, or those along one
dimension. Behind a flatten, a permutation, a pixel shuffle, a crop or an activation these are
entries of an image. If each set lies in one pixel there, columns start at pixels of that image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lapkernels.curvature.backward.columns import arriving
from lapkernels.curvature.recording.graph import Graph, Section, once_per_graph
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.rules.base.samples import Samples
from lapkernels.rules.shape import Copy, Movement
from lapkernels.rules.windows.below import POINTWISE


@dataclass(frozen=True)
class Start:
    """Columns of sets of entries along ``dim`` that start at the pixels of ``image`` [N, C, *size].

    The sample nodes from ``last`` on lie between it and the ``entry`` of the columns: ``chain``,
    from the entry on. ``sets`` are the most that come from one pixel.
    """

    entry: Value
    image: Value
    last: int
    chain: tuple[int, ...]
    dim: int | None
    sets: int

    def section(self, above: Section) -> Section:
        """The part of a section below the image."""
        return Section(above.first, self.last, self.image, above.exit, above.ends)

    def root(self, graph: Graph, root: Tensor) -> Tensor:
        """Columns [J, N, *entry] of all sets together, at the image."""
        for position in self.chain:
            node = graph.sample_nodes[position]
            ((_, root),) = arriving(node, node.rule.columns(_at_result(node, root), node.wanted))
        return root

    def index(self, graph: Graph) -> Tensor:
        """The entry's flat feature that an entry of the image becomes, -1 for none, [C, *size]."""
        index = _features(graph, self.entry)
        for position in self.chain:
            moved = _rearranged(graph.sample_nodes[position], index)
            assert moved is not None
            index = moved
        return index[0, 0].long() - 1

    def local(self, graph: Graph, root: Tensor) -> LocalAtImage:
        """The columns, from all sets together at the entry, [J, N, *entry]."""
        number = None
        if self.sets > 1:
            number, _ = _numbers(self.index(graph), self.entry.shape[1:], self.dim) or (None, 0)
            assert number is not None
        return LocalAtImage(self.root(graph, root), number, self.sets)


@dataclass(frozen=True)
class LocalAtImage:
    """Columns ``root`` [J, N, C, *size] of all sets, with the number of each entry's set."""

    root: Tensor
    number: Tensor | None
    sets: int

    def __call__(self, where: tuple[slice, ...]) -> Tensor:
        """Those of some pixels, each set alone, [J * sets, N, C, *pixels]."""
        part = self.root[(..., *where)]
        if self.number is None:
            return part
        number = self.number[(..., *where)]
        every = torch.arange(self.sets, device=part.device).reshape(-1, 1, *(1,) * number.dim())
        made = torch.where(number == every, part.unsqueeze(1), part.new_zeros(()))
        return made.flatten(0, 1)


@once_per_graph
def window_start(graph: Graph, section: Section, dim: int | None) -> Start | None:
    """The deepest image that sets of entries along ``dim`` come from."""
    value, found, last = section.entry, None, section.last
    if value.samples != Samples(graph.trace.count):
        return None
    index, chain = _features(graph, value), list[int]()
    while True:
        if value.samples == Samples(graph.trace.count) and 3 <= len(value.shape) <= 5:
            numbers = _numbers(index[0, 0].long() - 1, section.entry.shape[1:], dim)
            if numbers is not None:
                found = Start(section.entry, value, last, tuple(chain), dim, numbers[1])
        maker = graph.makers.get(id(value))
        position = None if maker is None else graph.positions.get(id(maker))
        if maker is None or position is None or position < section.first:
            return found
        if value in section.ends or value is section.exit or maker.outputs[0] is not value:
            return found
        moved = _rearranged(maker, index)
        if moved is None:
            return found
        index, last, (value,) = moved, position, maker.wanted_inputs
        chain.append(position)


def _features(graph: Graph, value: Value) -> Tensor:
    """The flat feature of each entry of a value, from one on, as zero is what a crop leaves out.

    In float64, where it is exact, as one column [1, N, *out].
    """
    count, *shape = value.shape
    device = graph.trace.prediction.device
    entries = torch.arange(1.0, 1 + prod(shape), dtype=torch.float64, device=device)
    return entries.reshape(shape).expand(1, count, *shape)


def _rearranged(node: Node, index: Tensor) -> Tensor | None:
    """The index at a node's operand, if each entry of the result is one entry of the operand."""
    below = node.wanted_inputs
    if node.rule.uses or len(below) != 1:
        return None
    if isinstance(node.rule, (*POINTWISE, Copy)):
        return index if below[0].shape == node.outputs[0].shape else None
    if not isinstance(node.rule, Movement) or len(node.inputs) != 1:
        return None
    (times,) = node.rule.columns(_at_result(node, torch.ones_like(index)), [True])
    (moved,) = node.rule.columns(_at_result(node, index), [True])
    if times is None or moved is None or float(times.max()) > 1:
        return None
    kept = int(torch.count_nonzero(moved)) == int(torch.count_nonzero(index))
    return moved if kept else None


def _at_result(node: Node, s: Tensor) -> list[Tensor | None]:
    return [s, *[None] * (len(node.outputs) - 1)]


def _numbers(index: Tensor, shape: Sequence[int], dim: int | None) -> tuple[Tensor, int] | None:
    """The number of each entry's set in its pixel, and the most sets of a pixel.

    None if a set lies in several pixels.
    """
    channels = index.shape[0]
    if dim is None:
        every = torch.arange(channels, device=index.device)
        return every.reshape(-1, *(1,) * (index.dim() - 1)).expand(index.shape), channels
    size, step = shape[dim - 1], prod(shape[dim:])
    sets = index // (size * step) * step + index % step
    sets = torch.where(index < 0, -1, sets).flatten(1)  # [C, pixels]
    ordered, order = sets.sort(0)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    new &= ordered >= 0
    if int(new.sum()) != prod(shape) // size:
        return None
    number = torch.empty_like(ordered).scatter_(0, order, (new.cumsum(0) - 1).clamp_min_(0))
    return number.reshape(index.shape), int(new.sum(0).max())
