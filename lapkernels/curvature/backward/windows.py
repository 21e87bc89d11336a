"""Exact curvature by locality: columns of an image-shaped output, carried as windows.

A column that starts at one output pixel touches its receptive field only. The columns of a tile of
pixels go back together as windows, through convolutions, activations, batch norms and sums, and the
cost is linear in the number of pixels. Where windows grow as large as the image, or an op has no
rule for them, they are placed into images and go on as plain columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from torch import Tensor

from lapkernels.curvature.backward.columns import (
    Collector,
    accumulate,
    hand_out,
    naming,
    pull_weights,
)
from lapkernels.curvature.recording.graph import Graph, Section, once_per_graph
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.ops.serving import choice
from lapkernels.rules.affine import Convolution
from lapkernels.rules.elementwise import Sum
from lapkernels.rules.windows.lanes import Grid, Lanes, Place
from lapkernels.rules.windows.window import (
    POINTWISE,
    NotAligned,
    Window,
    derivatives,
    place_below,
    windows_below,
)


@dataclass(frozen=True)
class Layout:
    """Windows of every value that has them, for the pixels p = residue + multiple * q.

    ``positions`` are the nodes that columns pass, ``entries`` the most numbers that one column of a
    sample has alive at one of them, and ``saving`` is how many times more all of them would be as
    images.
    """

    multiple: tuple[int, ...]
    places: dict[int, Place]
    positions: tuple[int, ...]
    entries: int
    saving: float

    @classmethod
    def of(cls, graph: Graph, section: Section, residue: tuple[int, ...] | None = None) -> Layout:
        """The layout of a section whose columns start at pixels."""
        dims = len(section.entry.shape) - 2
        multiple = [1] * dims
        while True:
            try:
                return cls._placed(graph, section, tuple(multiple), residue or (0,) * dims)
            except NotAligned as error:
                multiple[error.dim] *= error.factor

    @classmethod
    def _placed(
        cls, graph: Graph, section: Section, multiple: tuple[int, ...], residue: tuple[int, ...]
    ) -> Layout:
        start = Place(multiple, residue, (1,) * len(multiple))
        places: dict[int, Place | None] = {id(section.entry): start}
        ends = set(map(id, section.ends))
        positions: list[int] = []
        most = small = large = 0
        for position in reversed(range(section.first, section.last)):
            node = graph.sample_nodes[position]
            if not any(id(value) in places and id(value) not in ends for value in node.outputs):
                continue
            positions.append(position)
            place = places.get(id(node.outputs[0]))
            below = None if place is None else _below(node, place)
            live = 0
            for value in node.inputs:
                if not value.active or value.samples is None:
                    continue
                now = places[id(value)] = _joined(places, value, below)
                features = prod(value.shape) // value.samples.count
                here = features if now is None else value.shape[1] * prod(now.width)
                live, small, large = live + here, small + here, large + features
            most = max(most, live)
        found = {key: place for key, place in places.items() if place is not None}
        return cls(multiple, found, tuple(positions), max(1, most), large / max(1, small))


def _below(node: Node, place: Place) -> Place | None:
    if isinstance(node.rule, (*POINTWISE, Sum)) and any(
        value.shape != node.outputs[0].shape
        for value in node.inputs
        if value.active and value.samples is not None
    ):
        return None
    return place_below(node.rule, place)


def _joined(places: dict[int, Place | None], value: Value, below: Place | None) -> Place | None:
    """Windows of a value after one more reader; None is the whole image."""
    if below is None or below.covers(value.shape[2:]):
        return None
    if id(value) not in places:
        return below
    known = places[id(value)]
    if known is None or known.step != below.step:
        return None
    both = known.union(below)
    return None if both.covers(value.shape[2:]) else both


@once_per_graph
def _layout(graph: Graph, section: Section, residue: tuple[int, ...]) -> Layout:
    return Layout.of(graph, section, residue)


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


@once_per_graph
def local_layout(graph: Graph, section: Section) -> Layout | None:
    """The layout, if the entry of a section is an image for each sample and windows are smaller."""
    where = section.entry.samples
    if where is None or (where.dim, where.outer, where.inner) != (0, 1, 1):
        return None
    if not 3 <= len(section.entry.shape) <= 5:
        return None
    layout = Layout.of(graph, section)
    return layout if layout.saving > 1 or choice("windows") else None


def most_pixels(layout: Layout, columns: int, budget: int) -> int:
    """Pixels of a tile, if the columns of one pixel have ``columns`` bytes for each entry."""
    # A window is alive before and after an op, beside the windows of the activations.
    return max(1, budget // max(1, 3 * layout.entries * columns))


def pull_local(
    graph: Graph,
    layout: Layout,
    section: Section,
    columns: int,
    local: Callable[[tuple[slice, ...]], Tensor],
    collector: Collector,
    budget: int,
    ended: Callable[[Value, Tensor], None] | None = None,
) -> Iterator[Tensor]:
    """Carry ``columns`` J that start at each pixel back through a section, tile by tile.

    ``local`` gives the pixels of a tile, [J, N, C, *pixels], with column (j, pixel) at that pixel.
    Yields the columns of each tile at the section's exit; ``ended`` gets the sum of their squares
    at each of its ends.
    """
    if columns == 0:
        return
    count, size = section.entry.shape[0], section.entry.shape[2:]
    most = most_pixels(layout, columns * count * section.entry.dtype.itemsize, budget)
    walks = LocalWalks(graph, section)
    for tile, where in tiles(count, size, layout.multiple, most):
        part = local(where).flatten(3)  # [J, N, C, pixels]
        ones = (1,) * len(size)
        s = part.permute(0, 2, 1, 3).flatten(2).reshape(columns, -1, *ones, tile.lanes.size)
        at_exit = walks.pull(tile, s, collector, ended)
        if at_exit is not None:
            yield at_exit


class LocalWalks:
    """Carries columns that start at pixels back through a section, a tile at a time."""

    def __init__(self, graph: Graph, section: Section) -> None:
        self.graph, self.section = graph, section
        # The derivatives of activations are kept from tile to tile.
        self._cache: dict[int, list[Tensor | None]] = {}
        self._fused = _fused(graph, section)

    def pull(
        self,
        tile: Tile,
        s: Tensor,
        collector: Collector,
        ended: Callable[[Value, Tensor], None] | None = None,
    ) -> Tensor | None:
        """Carry columns ``s`` [V, C, 1.., L] at the tile's pixels back; they come to the exit.

        ``ended`` gets the sum of their squares at each end of the section.
        """
        layout = _layout(self.graph, self.section, tile.residue)
        walk = _Walk(self.graph, layout, tile, self._cache, self._fused, self.section.ends)
        walk.start(self.section.entry, s)
        for position in reversed(range(self.section.first, self.section.last)):
            walk.visit(position, collector)
        pull_weights(self.graph, walk.waiting, s.shape[0] * tile.lanes.pixels, collector)
        if ended is not None:
            for value in self.section.ends:
                squares = walk.squares(value)
                if squares is not None:
                    ended(value, squares)
        return None if self.section.exit is None else walk.at(self.section.exit)


@once_per_graph
def _fused(graph: Graph, section: Section) -> dict[int, int]:
    """Convolutions whose operand comes from a pointwise op that no one else reads: both at once."""
    nodes = graph.sample_nodes
    found: dict[int, int] = {}
    for position in range(section.first, section.last):
        value = nodes[position].inputs[0]
        below = graph.made_for_one(value)
        if not isinstance(nodes[position].rule, Convolution):
            continue
        if below is None or below < section.first:
            continue
        maker = nodes[below]
        operands = [one for one, want in zip(maker.inputs, maker.wanted, strict=True) if want]
        plain = isinstance(maker.rule, POINTWISE) and not maker.rule.uses
        alone = value not in (section.exit, *section.ends)
        if plain and alone and len(operands) == 1 and operands[0].shape == value.shape:
            found[position] = below
    return found


class _Walk:
    """The columns of one tile on their way: windows, and images where windows end."""

    def __init__(
        self,
        graph: Graph,
        layout: Layout,
        tile: Tile,
        cache: dict[int, list[Tensor | None]],
        fused: dict[int, int],
        ends: Sequence[Value],
    ) -> None:
        self.graph, self.layout, self.tile, self.cache = graph, layout, tile, cache
        self.fused, self.ends = fused, set(map(id, ends))
        self.windows: dict[int, Window] = {}
        self.images: dict[int, Tensor] = {}
        self.waiting: list[tuple[Node, int, Tensor]] = []

    def start(self, entry: Value, s: Tensor) -> None:
        """Columns at the pixels themselves."""
        place = self._place(entry)
        assert place is not None
        self.windows[id(entry)] = Window(s, place, self.tile.lanes)

    def _place(self, value: Value) -> Place | None:
        """The windows of a value for this tile."""
        place = self.layout.places.get(id(value))
        if place is None:
            return None
        starts = zip(place.first, place.step, self.tile.corner, strict=True)
        return replace(place, first=tuple(f + s * c for f, s, c in starts))

    def at(self, value: Value) -> Tensor | None:
        """The columns that have come to a value, as images."""
        window = self.windows.get(id(value))
        if window is not None:
            image = window.cleaned(value.shape[2:]).image(value.shape[2:])
            accumulate(self.images, id(value), image)
        return self.images.get(id(value))

    def squares(self, value: Value) -> Tensor | None:
        """The sum of the squares of what has come to a value, of its shape."""
        window = self.windows.get(id(value))
        if window is not None and id(value) not in self.images:
            return window.cleaned(value.shape[2:]).squares(value.shape[2:])
        image = self.at(value)
        return None if image is None else image.square().sum(0)

    def visit(self, position: int, collector: Collector) -> None:
        """Carry what has come to a node's results on to its operands."""
        node = self.graph.sample_nodes[position]
        going = [None if id(value) in self.ends else id(value) for value in node.outputs]
        images = [None if key is None else self.images.pop(key, None) for key in going]
        windows = [None if key is None else self.windows.pop(key, None) for key in going]
        wanted = node.wanted
        if windows[0] is not None:
            window = windows[0]
            if node.rule.uses or not isinstance(node.rule, POINTWISE):
                window = window.cleaned(node.outputs[0].shape[2:])
            if place_below(node.rule, window.place) is None:
                images[0] = window.image(node.outputs[0].shape[2:])
            else:
                for index in node.rule.uses:
                    self._share(position, index, window, collector)
                if any(wanted):
                    self._pull(position, window, wanted)
        if any(image is not None for image in images):
            hand_out(self.graph, position, images, collector, self.waiting)
            if any(wanted):
                with naming(node):
                    parts = node.rule.columns(images, wanted)
                for value, part, want in zip(node.inputs, parts, wanted, strict=True):
                    if want and part is not None:
                        accumulate(self.images, id(value), part)

    def _share(self, position: int, index: int, window: Window, collector: Collector) -> None:
        node = self.graph.sample_nodes[position]
        share = self.graph.shares.get((position, index))
        size = node.outputs[0].shape[2:]
        if share is None:
            self.waiting.append((node, index, window.image(size)))
        else:
            with naming(node):
                collector.window(share, window, size)

    def _pull(self, position: int, window: Window, wanted: list[bool]) -> None:
        node = self.graph.sample_nodes[position]
        shapes = [value.shape for value in node.inputs]
        below = self.fused.get(position)
        if below is not None and self._place(node.inputs[0]) is not None:
            maker = self.graph.sample_nodes[below]
            factors = self._factors(below)
            (value,) = (one for one, f in zip(maker.inputs, factors, strict=True) if f is not None)
            (factor,) = (f for f in factors if f is not None)
            part = windows_below(node.rule, window, shapes, [factor])[0]
            assert part is not None
            self._deposit(value, part)
            return
        factors = self._factors(position) if isinstance(node.rule, POINTWISE) else []
        parts = windows_below(node.rule, window, shapes, factors)
        for value, part, want in zip(node.inputs, parts, wanted, strict=True):
            if want and part is not None:
                self._deposit(value, part)

    def _factors(self, position: int) -> list[Tensor | None]:
        """Derivatives of a pointwise op, of its result's shape."""
        if position not in self.cache:
            node = self.graph.sample_nodes[position]
            shape = node.outputs[0].shape
            wanted = node.wanted
            found = derivatives(node.rule, shape, self.graph.trace.prediction, wanted)
            self.cache[position] = [None if one is None else one.expand(shape) for one in found]
        return self.cache[position]

    def _deposit(self, value: Value, window: Window) -> None:
        place = self._place(value)
        if place is None:
            window = window.cleaned(value.shape[2:])
            accumulate(self.images, id(value), window.image(value.shape[2:]))
            return
        window = window.moved(place)
        known = self.windows.get(id(value))
        if known is not None:
            clean = known.clean and window.clean
            window = replace(window, s=known.s + window.s, clean=clean)
        self.windows[id(value)] = window
