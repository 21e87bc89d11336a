"""Going back by autograd, which knows the gradients of ops that have no rule."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lapkernels.curvature.backward.columns import Collector, hand_out_one, pull_weights
from lapkernels.curvature.recording.graph import Graph
from lapkernels.curvature.recording.trace import Node


def autograd_columns(graph: Graph, s: Tensor, collector: Collector) -> None:
    """Carry columns back by autograd, one at a time, to the ops that use a weight.

    In a batch of one the gradient of a parameter is its Jacobian, however it is used.
    """
    trace = graph.trace
    f = trace.differentiable
    assert f is not None
    alone = trace.count == 1
    found = [] if alone and trace.hidden else _edges(graph, only_shares=alone)
    named = {graph.shares[position, index].name for position, index, _ in found} if alone else set()
    direct = [name for name in trace.parameters if alone and name not in named]
    targets = [edge for _, _, edge in found]
    targets += [get_gradient_edge(trace.leaves[name]) for name in direct]
    if not targets:
        return

    def carry(column: Tensor) -> None:
        # A function of its own, so that no gradient is held while those of the next column come.
        grads = torch.autograd.grad(f, targets, column, retain_graph=True, allow_unused=True)
        waiting: list[tuple[Node, int, Tensor]] = []
        for (position, index, _), grad in zip(found, grads, strict=False):
            if grad is not None:
                hand_out_one(graph, position, index, grad.unsqueeze(0), collector, waiting)
        for name, grad in zip(direct, grads[len(found) :], strict=True):
            if grad is not None:
                collector.jacobian(name, grad[None, None], slice(0, 1))
        pull_weights(graph, waiting, 1, collector)

    for column in s:
        carry(column)


def _edges(graph: Graph, only_shares: bool) -> list[tuple[int, int, GradientEdge]]:
    """Node, operand and place in autograd's graph of every use of a weight."""
    return [
        (position, index, node.edges[0])
        for position, node in enumerate(graph.sample_nodes)
        for index in node.rule.uses
        if node.edges and node.edges[0] is not None
        if not only_shares or (position, index) in graph.shares
    ]
