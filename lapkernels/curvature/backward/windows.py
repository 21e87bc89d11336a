"""Exact curvature by locality: columns of an image-shaped output, carried as windows.

A column that starts at one output pixel is zero outside of its receptive field. The columns of a
tile of pixels are pulled back together as windows, through convolutions, activations, batch norms
and sums, and the cost is linear in the number of pixels. Where windows grow as large as the image,
or an op has no rule for them, they are expanded into images and continue as plain columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from lapkernels.curvature.backward.columns import (
    Collector,
    Waiting,
    arriving,
    go_back,
    hand_out,
    hand_out_one,
    pull_weights,
)
from lapkernels.curvature.backward.layout import Layout, Tile, layout_of, tiles
from lapkernels.curvature.recording.graph import Graph, Section
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.rules.windows.below import POINTWISE, derivatives, windows_below
from lapkernels.rules.windows.lanes import Place
from lapkernels.rules.windows.window import Window

# Makes the columns [J, N, C, *pixels] of some pixels, column (j, pixel) at that pixel.
AtPixels = Callable[[tuple[slice, ...]], Tensor]


def pull_windows(
    graph: Graph,
    section: Section,
    layout: Layout,
    step: int,
    local: AtPixels,
    collector: Collector,
    ended: Callable[[Value, Tensor], None] | None = None,
) -> Iterator[Tensor]:
    """Pull columns that start at the pixels of a section's entry back through it, tile by tile.

    Yields the columns of each tile at the section's exit; ``ended`` gets the sum of their squares
    at each of its ends.
    """
    count, size = section.entry.shape[0], section.entry.shape[2:]
    walk = WindowWalk(graph, section)
    for tile, where in tiles(count, size, layout.multiple, step):
        at_exit = walk.pull(tile, as_lanes(local(where), len(size)), collector, ended)
        if at_exit is not None:
            yield at_exit


def as_lanes(columns: Tensor, dims: int) -> Tensor:
    """Columns [J, N, C, *pixels] as windows of one pixel, [J, C, 1.., L]."""
    s = columns.flatten(3).permute(0, 2, 1, 3).flatten(2)
    return s.reshape(*s.shape[:2], *(1,) * dims, -1)


class WindowWalk:
    """Pulls columns that start at pixels back through a section, a tile at a time."""

    def __init__(self, graph: Graph, section: Section) -> None:
        self.graph, self.section = graph, section
        # The derivatives of activations are cached for all tiles.
        self._factors: dict[int, list[Tensor | None]] = {}

    def pull(
        self,
        tile: Tile,
        s: Tensor,
        collector: Collector,
        ended: Callable[[Value, Tensor], None] | None = None,
    ) -> Tensor | None:
        """Pull columns ``s`` [V, C, 1.., L] at the tile's pixels back to the exit.

        ``ended`` gets the sum of their squares at each end of the section.
        """
        graph, section = self.graph, self.section
        one = _TileWalk(self, tile, layout_of(graph, section, tile.residue), collector, [])
        place = one.place(section.entry)
        assert place is not None
        at: dict[int, Tensor | Window] = {id(section.entry): Window(s, place, tile.lanes)}

        def squared(value: Value, columns: Tensor | Window) -> None:
            size = value.shape[2:]
            if isinstance(columns, Window):
                squares = columns.cleaned(size).squares(size)
            else:
                squares = columns.square().sum(0)
            if ended is not None:
                ended(value, squares)

        span = range(section.first, section.last)
        go_back(graph.sample_nodes, span, at, one.visit, ends=section.ends, ended=squared, add=_sum)
        pull_weights(graph, one.waiting, s.shape[0] * tile.lanes.pixels, collector)
        if section.exit is None or id(section.exit) not in at:
            return None
        return _image(at[id(section.exit)], section.exit)

    def factors(self, position: int) -> list[Tensor | None]:
        """Derivatives of a pointwise op, of its result's shape."""
        if position not in self._factors:
            node = self.graph.sample_nodes[position]
            shape = node.outputs[0].shape
            found = derivatives(node.rule, shape, self.graph.trace.prediction, node.wanted)
            self._factors[position] = [None if d is None else d.expand(shape) for d in found]
        return self._factors[position]


@dataclass
class _TileWalk:
    """The columns of one tile: windows, and images where windows end."""

    whole: WindowWalk
    tile: Tile
    layout: Layout
    collector: Collector
    waiting: Waiting

    def place(self, value: Value) -> Place | None:
        """The windows of a value for this tile."""
        place = self.layout.places.get(id(value))
        if place is None:
            return None
        starts = zip(place.first, place.step, self.tile.corner, strict=True)
        return replace(place, first=tuple(f + s * c for f, s, c in starts))

    def visit(
        self, position: int, node: Node, outs: list[Tensor | Window | None]
    ) -> Iterable[tuple[Value, Tensor | Window]]:
        """Hand out the columns at a node's results, and pull them back to its operands."""
        window = outs[0]
        if isinstance(window, Window) and position in self.layout.passed:
            outs[0] = None
            if node.rule.uses or not isinstance(node.rule, POINTWISE):
                window = window.cleaned(node.outputs[0].shape[2:])
            for index in node.rule.uses:
                self._share(position, index, window)
            if any(node.wanted):
                for value, part in self._pull(position, node, window):
                    yield value, self._deposited(value, part)
        pairs = zip(node.outputs, outs, strict=True)
        images = [None if out is None else _image(out, value) for value, out in pairs]
        if any(image is not None for image in images):
            hand_out(self.whole.graph, position, images, self.collector, self.waiting)
            if any(node.wanted):
                yield from arriving(node, node.rule.columns(images, node.wanted))

    def _share(self, position: int, index: int, window: Window) -> None:
        node = self.whole.graph.sample_nodes[position]
        share, size = self.whole.graph.shares.get((position, index)), node.outputs[0].shape[2:]
        if share is None:
            image = window.image(size)
            hand_out_one(self.whole.graph, position, index, image, self.collector, self.waiting)
        else:
            self.collector.window(share, window, size)

    def _pull(self, position: int, node: Node, window: Window) -> Sequence[tuple[Value, Window]]:
        """Windows at a node's operands, or behind the pointwise op that is one step with it."""
        shapes = [value.shape for value in node.inputs]
        below = self.layout.fused.get(position)
        if below is not None:
            maker = self.whole.graph.sample_nodes[below]
            ((value, factor),) = arriving(maker, self.whole.factors(below))
            (part, *_) = windows_below(node.rule, window, shapes, [factor])
            assert part is not None
            return [(value, part)]
        factors = self.whole.factors(position) if isinstance(node.rule, POINTWISE) else []
        return arriving(node, windows_below(node.rule, window, shapes, factors))

    def _deposited(self, value: Value, window: Window) -> Tensor | Window:
        """Columns at a value: in its windows, or as images if it has none."""
        place = self.place(value)
        if place is None:
            return _image(window, value)
        if place.period != window.place.period:
            window = window.cleaned(value.shape[2:])
        return window.moved(place)


def _sum(known: Tensor | Window, part: Tensor | Window) -> Tensor | Window:
    if isinstance(known, Window) and isinstance(part, Window):
        return replace(known, s=known.s + part.s, clean=known.clean and part.clean)
    assert isinstance(known, Tensor) and isinstance(part, Tensor)
    return known + part


def _image(columns: Tensor | Window, value: Value) -> Tensor:
    """Columns [V, *shape] of a value."""
    if isinstance(columns, Tensor):
        return columns
    return columns.cleaned(value.shape[2:]).image(value.shape[2:])
