"""Chains of layers with activations between them, which a diagonal passes in one call.

A link is a layer whose input is the result of an activation that nothing else reads, or of the
layer before; nothing else uses its weight and bias. Layers of many channels, and linear ones on
many rows, are excluded: torch's library is faster there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from lapkernels.curvature.recording.graph import Graph, once_per_graph
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.ops import ChainLayer, ChainSums, can_chain, layer_chain, serving
from lapkernels.rules import Rule
from lapkernels.rules.affine import Convolution, Linear
from lapkernels.rules.base.uses import RowsUse, WeightUse

Found = Callable[[str, Tensor], None]


@dataclass(frozen=True, slots=True)
class Link:
    """A layer, the activation before it, and the names of its parameters.

    A name is None where there is no parameter, or it is not wanted.
    """

    layer: Node
    activation: Node | None
    weight: str | None
    bias: str | None

    @property
    def below(self) -> Value:
        """The value at which the diagonal is after this link."""
        return (self.activation or self.layer).inputs[0]

    def layer_of(self) -> ChainLayer:
        """The op's arguments of this link."""
        rule = self.layer.rule
        use = rule.uses[1]
        slope = None if self.activation is None else self.activation.rule.slope()
        z = None if slope is None else slope.z
        if isinstance(rule, Linear):
            assert isinstance(use, RowsUse)
            x, kept = _dense(use.rows()), rule.matrix
            weight = None if kept is None else _dense(kept.tensor)
            z = None if z is None else _dense(z)
        else:
            assert isinstance(rule, Convolution) and isinstance(use, WeightUse)
            x, weight = use.x(), None if rule.weight is None else rule.weight.tensor
        return ChainLayer(
            use.geometry,
            # Not read if the diagonal ends here.
            x.new_empty(()).expand(use.shape) if weight is None else weight,
            x,
            self.weight is not None,
            self.bias is not None,
            z,
            "identity" if slope is None else slope.activation,
            0.0 if slope is None else slope.slope,
        )


@dataclass(frozen=True, slots=True)
class Chain:
    """Links from the last layer to the first."""

    links: list[Link]

    @property
    def below(self) -> Value:
        """The value at which the diagonal is after the chain."""
        return self.links[-1].below

    def takes(self, m: Tensor) -> bool:
        """Whether the op has a kernel for a diagonal like this."""
        return can_chain(m)

    def pull(
        self, m: Tensor, found: Found, g: Tensor | None = None, gradient: Found | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Hand out the shares of a diagonal and a gradient; returns both at the chain's input."""
        wants_input = self.below.active
        layers = [link.layer_of() for link in self.links]
        squares, sums = layer_chain(layers, m, g, wants_input=wants_input)
        self._hand_out(squares, found)
        if sums is None or gradient is None:
            return squares.input, None
        self._hand_out(sums, gradient)
        return squares.input, sums.input

    def _hand_out(self, sums: ChainSums, found: Found) -> None:
        for link, weight, bias in zip(self.links, sums.weights, sums.biases, strict=True):
            for name, value in ((link.weight, weight), (link.bias, bias)):
                if name is not None and value is not None:
                    found(name, value)


@once_per_graph
def chains(graph: Graph) -> dict[int, Chain]:
    """Every chain of a graph, by the position of its last layer."""
    found: dict[int, Chain] = {}
    taken: set[int] = set()
    for last in reversed(range(len(graph.sample_nodes))):
        links: list[Link] = []
        position: int | None = last
        while position is not None and position not in taken:
            link = _link(graph, position)
            if link is None:
                break
            taken.add(position)
            links.append(link)
            position = graph.made_for_one(link.below)
        if links:
            found[last] = Chain(links)
    return found


def _link(graph: Graph, position: int) -> Link | None:
    """The link that ends with the layer at a position, if there is one."""
    node = graph.sample_nodes[position]
    rule, use = node.rule, node.rule.uses.get(1)
    if not isinstance(use, WeightUse) or not _is_ours(rule, use, node.inputs[0].shape):
        return None
    shares = {index: graph.shares.get((position, index)) for index in rule.uses}
    if any(share is None or share.chain for share in shares.values()):
        return None
    names = {index: share.name for index, share in shares.items() if share is not None}
    maker = graph.made_for_one(node.inputs[0])
    below = None if maker is None else graph.sample_nodes[maker]
    activation = below if below is not None and below.rule.is_activation else None
    return Link(node, activation, names.get(1), names.get(2))


def _is_ours(rule: Rule, use: WeightUse, x: Sequence[int]) -> bool:
    """Whether our kernels are the faster ones for a layer whose input has the shape ``x``.

    It also works for graphs without tensors.
    """
    if isinstance(rule, Linear):
        return isinstance(use, RowsUse) and serving.linear_chained(x[0])
    if not isinstance(rule, Convolution) or use.geometry != rule.geometry:
        return False
    rows, columns, *kernel = use.shape
    groups = use.geometry.groups
    made = rows // groups if use.geometry.transposed else columns
    if serving.short_rows_by_library(made, x[-1]):
        return False
    return not serving.conv_weight_by_library(rows, columns * groups, kernel, groups)


def _dense(rows: Tensor) -> Tensor:
    return rows if rows.stride(1) == 1 else rows.contiguous()
