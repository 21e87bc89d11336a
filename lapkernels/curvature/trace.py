"""A recorded forward pass: values, the ops that made them, and their rules."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lapkernels.rules import Rule, Samples


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of the forward pass. ``samples`` is None if it is the same for all samples.

    ``active`` values depend on a chosen parameter; ``parameter`` is its name if it is one itself;
    ``without_grad`` ones were made where gradients are disabled, or are detached.
    """

    shape: torch.Size
    dtype: torch.dtype
    samples: Samples | None
    active: bool
    parameter: str | None = None
    without_grad: bool = False


@dataclass(eq=False, slots=True)
class Node:
    """One op that the model ran, in the module ``path``."""

    name: str
    path: str
    inputs: list[Value]
    outputs: list[Value]
    rule: Rule
    edges: list[GradientEdge | None] = field(default_factory=list)

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.name.removeprefix('aten::')} in {self.path or 'the model'}"


@dataclass
class Trace:
    """A recorded forward pass of ``count`` samples. Nodes are those that depend on parameters.

    ``entries`` counts the numbers of their results that are no views. ``opaque`` says whose
    gradient only autograd knows, and ``hidden`` whether parameters were read where gradients are
    disabled, as a custom autograd.Function does. ``graph`` is the prediction with autograd's graph,
    if kept.
    """

    count: int
    parameters: dict[str, Value]
    nodes: list[Node]
    output: Value
    prediction: Tensor
    entries: int
    graph: Tensor | None
    leaves: dict[str, Tensor]
    opaque: list[str]
    hidden: bool
