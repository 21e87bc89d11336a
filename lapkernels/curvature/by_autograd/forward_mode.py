"""J v by forward mode, where that agrees with the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

# Documented in "Extending PyTorch" under this very name.
from torch.utils._python_dispatch import TorchDispatchMode

from lapkernels.curvature.recording.operators import tensors_of


class Differentiated(TorchDispatchMode):
    """Detects where forward mode and the backward pass have different derivatives.

    Forward mode ignores ``no_grad``, hooks, the backward of a custom ``autograd.Function``, and
    embedding rows without a gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self._alike = True
        # Kept until the end of the forward pass, as a hook may be registered at any time.
        self._results: list[Tensor] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.embedding.default:
            self._alike &= len(args) == 2
        if not torch.is_grad_enabled():
            read = tensors_of([args, list(kwargs.values())])
            self._alike &= not any(tensor.requires_grad for tensor in read)
        out = func(*args, **kwargs)
        self._results += tensors_of([out])
        return out

    def alike(self, f: Tensor) -> bool:
        """Whether all derivatives of ``f`` are torch's own; clears what was kept."""
        hooked = any(tensor._backward_hooks for tensor in self._results)
        custom = any(isinstance(node, BackwardCFunction) for node in nodes_behind([f]))
        self._results.clear()
        return self._alike and not hooked and not custom


def nodes_behind(results: Iterable[Tensor]) -> Iterator[Node]:
    """The nodes of autograd's graph that made some tensors, each once."""
    rest, seen = [result.grad_fn for result in results], set[Node]()
    while rest:
        node = rest.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            rest += [before for before, _ in node.next_functions]


@torch.no_grad()
def forward_product(
    run: Callable[..., Tensor], leaves: Sequence[Tensor], vectors: Sequence[Tensor]
) -> Tensor:
    """J v [K, *f.shape] of ``vectors``, [K, *leaf.shape] for each leaf.

    No graph is kept. Raises a RuntimeError for ops that torch cannot differentiate forward.
    """
    values = tuple(leaf.detach() for leaf in leaves)
    if len(vectors[0]) == 1:
        return _one(run, values, [vector[0] for vector in vectors]).unsqueeze(0)
    try:
        push = torch.func.vmap(lambda tangents: torch.func.jvp(run, values, tangents)[1])
        return push(tuple(vectors))
    except RuntimeError:  # An op that torch cannot vectorise: one vector after the other.
        rows = [[vector[k] for vector in vectors] for k in range(len(vectors[0]))]
        return torch.stack([_one(run, values, row) for row in rows])


def _one(
    run: Callable[..., Tensor], values: Sequence[Tensor], tangents: Sequence[Tensor]
) -> Tensor:
    with forward_ad.dual_level():
        pairs = zip(values, tangents, strict=True)
        f, tangent = forward_ad.unpack_dual(run(*(forward_ad.make_dual(x, t) for x, t in pairs)))
        return torch.zeros_like(f) if tangent is None else tangent
