"""The layout of windows of columns that start at single pixels, and tiles of such pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from torch import Tensor

from lapkernels.curvature.recording.graph import Graph, Section, once_per_graph
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.ops.serving import choice
from lapkernels.rules.affine import Convolution
from lapkernels.rules.elementwise import Sum
from lapkernels.rules.windows.below import POINTWISE, place_below
from lapkernels.rules.windows.lanes import Grid, Lanes, Place
from lapkernels.rules.windows.window import NotAligned


@dataclass(frozen=True)
class Layout:
    """Windows of every value that has them, for the pixels p = residue + multiple * q.

    ``entries`` are the most numbers that one column of a sample has alive at a node, and ``saving``
    is how many times more all of them would be as images. Nodes that are ``passed`` take windows to
    windows, others take images. ``fused`` are convolutions that are one step with the pointwise op
    below, by position.
    """

    multiple: tuple[int, ...]
    places: dict[int, Place]
    entries: int
    saving: float
    passed: frozenset[int]
    fused: dict[int, int]

    @classmethod
    def _placed(
        cls, graph: Graph, section: Section, multiple: tuple[int, ...], residue: tuple[int, ...]
    ) -> Layout:
        start = Place(multiple, residue, (1,) * len(multiple))
        like, size = graph.trace.prediction, section.entry.shape[2:]
        extent = [-(-(n - r) // m) for n, r, m in zip(size, residue, multiple, strict=True)]
        places: dict[int, Place | None] = {id(section.entry): start}
        passed: set[int] = set()
        most = small = large = 0
        for position, node in section.passed(graph):
            place = places.get(id(node.outputs[0]))
            below = None if place is None else _below(node, place, extent, like)
            if below is not None and _shows_copies(section, node, below):
                below = None
            if below is not None:
                passed.add(position)
            live = 0
            for value in node.wanted_inputs:
                now = places[id(value)] = _joined(places, value, below)
                here = value.features if now is None else value.shape[1] * prod(now.width)
                live, small, large = live + here, small + here, large + value.features
            most = max(most, live)
        found = {key: place for key, place in places.items() if place is not None}
        fused = _fused(graph, section, found)
        return cls(multiple, found, max(1, most), large / max(1, small), frozenset(passed), fused)

    def window_share(self, value: Value) -> float:
        """The size of a window at a value, relative to the image."""
        place = self.places.get(id(value))
        return 1.0 if place is None else prod(place.width) / prod(value.shape[2:])

    def pixels(self, columns: int, budget: int) -> int:
        """Pixels of a tile, if the columns of one pixel have ``columns`` bytes for each entry."""
        # Windows before and after an op are alive at once, and those of the activations.
        return max(1, budget // max(1, 3 * self.entries * columns))


@once_per_graph
def layout_of(graph: Graph, section: Section, residue: tuple[int, ...] | None = None) -> Layout:
    """The layout of a section whose columns start at pixels, those with one residue."""
    dims = len(section.entry.shape) - 2
    multiple = [1] * dims
    while True:
        try:
            return Layout._placed(graph, section, tuple(multiple), residue or (0,) * dims)
        except NotAligned as error:
            multiple[error.dim] *= error.factor


def local_layout(graph: Graph, section: Section) -> Layout | None:
    """The layout, if the entry of a section is an image for each sample and windows are smaller."""
    where = section.entry.samples
    if where is None or (where.dim, where.outer, where.inner) != (0, 1, 1):
        return None
    if not 3 <= len(section.entry.shape) <= 5:
        return None
    layout = layout_of(graph, section)
    return layout if layout.saving > 1 or choice("windows") else None


def _below(node: Node, place: Place, extent: Sequence[int], like: Tensor) -> Place | None:
    broadcast = any(value.shape != node.outputs[0].shape for value in node.wanted_inputs)
    if broadcast and isinstance(node.rule, (*POINTWISE, Sum)):
        return None
    return place_below(node.rule, place, extent, like, node.inputs[0].period)


def _shows_copies(section: Section, node: Node, place: Place) -> bool:
    """Whether an end of the section is an image with copies, which windows take for one entry."""
    return bool(place.period) and any(
        value in section.ends and value.shape[2:] != place.period for value in node.wanted_inputs
    )


def _joined(places: dict[int, Place | None], value: Value, below: Place | None) -> Place | None:
    """Windows of a value after one more reader; None is the whole image."""
    if below is None or below.covers(value.shape[2:]):
        return None
    if id(value) not in places:
        return below
    known = places[id(value)]
    if known is None or known.step != below.step:
        return None
    if known.period and below.period and known.period != below.period:
        return None
    both = known.union(below)
    return None if both.covers(value.shape[2:]) else both


def _fused(graph: Graph, section: Section, places: dict[int, Place]) -> dict[int, int]:
    """Convolutions fused with the pointwise op that makes their operand for them alone."""
    found: dict[int, int] = {}
    for position in range(section.first, section.last):
        node = graph.sample_nodes[position]
        value = node.inputs[0]
        below = graph.made_for_one(value)
        if not isinstance(node.rule, Convolution) or below is None or below < section.first:
            continue
        maker = graph.sample_nodes[below]
        operands = maker.wanted_inputs
        plain = isinstance(maker.rule, POINTWISE) and not maker.rule.uses
        alone = id(value) in places and value not in (section.exit, *section.ends)
        if plain and alone and len(operands) == 1 and operands[0].shape == value.shape:
            found[position] = below
    return found


@dataclass(frozen=True)
class Tile:
    """The pixels residue + multiple * (corner + q) for the q of lanes."""

    residue: tuple[int, ...]
    corner: tuple[int, ...]
    lanes: Lanes


def tiles(
    count: int, size: Sequence[int], multiple: Sequence[int], most: int
) -> Iterator[tuple[Tile, tuple[slice, ...]]]:
    """Tiles of at most ``most`` pixels that cover the images of ``count`` samples, and where."""
    for residue in product(*(range(min(m, n)) for m, n in zip(multiple, size, strict=True))):
        counts = [-(-(n - r) // m) for n, r, m in zip(size, residue, multiple, strict=True)]
        shape, left = list(counts), most
        for d in reversed(range(len(counts))):
            shape[d] = max(1, min(counts[d], left))
            left //= shape[d]
        for corner in product(*(range(0, c, s) for c, s in zip(counts, shape, strict=True))):
            pixels = [min(s, n - c) for s, n, c in zip(shape, counts, corner, strict=True)]
            where = zip(residue, corner, pixels, multiple, strict=True)
            slices = [slice(r + m * c, r + m * (c + p - 1) + 1, m) for r, c, p, m in where]
            yield Tile(residue, corner, Grid(count, tuple(pixels))), tuple(slices)


def tile_count(size: Sequence[int], multiple: Sequence[int], most: int) -> int:
    """The number of those tiles, about."""
    each = prod(-(-n // m) for n, m in zip(size, multiple, strict=True))
    return prod(map(min, multiple, size)) * -(-each // most)
