"""Derivatives of one batch by autograd alone: Jacobian, Gauss-Newton and Hessian products.

They serve every model that autograd can differentiate, with no rules. J v is the derivative of
Jᵀ u in u, so forward mode is not needed; with the graph of Jᵀ u at hand a product costs about one
pass through the model. Several vectors go at once, by ``vmap`` where torch can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

from lapkernels.curvature.errors import Refused
from lapkernels.curvature.selection import Batch, Output, selector
from lapkernels.likelihoods import Likelihood

# Bytes for the vectors that go through a model at once, if the model itself takes less.
BUDGET = 1 << 24


@dataclass
class Graph:
    """The outputs ``f`` of a batch with autograd's graph, over copies ``leaves`` of parameters.

    ``entries`` counts the numbers that the graph keeps. ``run`` gives f for other leaves, and for
    another batch if it has one.
    """

    f: Tensor
    leaves: list[Tensor]
    entries: int
    run: Callable[..., Tensor]

    @property
    def size(self) -> int:
        """P."""
        return sum(leaf.numel() for leaf in self.leaves)

    def chunk(self, budget: int | None) -> int:
        """Number of vectors that may go through the graph at once."""
        one = max(1, 2 * self.entries + self.size) * self.f.element_size()
        return max(1, (max(one, BUDGET) if budget is None else budget) // one)

    def transposed(self, s: Tensor) -> Tensor:
        """Jᵀ s of ``s`` [K, *f.shape], [K, P]."""
        return _pull([self.f], self.leaves, [s])

    def product(self, vectors: Tensor) -> Tensor:
        """J v of ``vectors`` [K, P], [K, *f.shape]."""
        try:
            return self._transposed_twice(vectors)
        except RuntimeError as error:
            return self._forward_mode(vectors, error)

    def _transposed_twice(self, vectors: Tensor) -> Tensor:
        # Any u will do; some ops have a backward that is not smooth at zero.
        spread = torch.linspace(0.5, 1.5, self.f.numel(), dtype=self.f.dtype, device=self.f.device)
        u = spread.reshape(self.f.shape).requires_grad_()
        pulled = _first(self.f, self.leaves, u)
        return _pull(pulled, [u], self._shaped(vectors)).reshape(-1, *self.f.shape)

    def _forward_mode(self, vectors: Tensor, reason: RuntimeError) -> Tensor:
        """For ops whose backward has no derivative but that have one forward."""
        leaves = tuple(self.leaves)
        found = []
        try:
            for vector in vectors:
                tangents = tuple(part[0] for part in self._shaped(vector.unsqueeze(0)))
                found.append(torch.func.jvp(self.run, leaves, tangents)[1])
        except RuntimeError as error:
            raise Refused(
                f"J v can be found neither by differentiating twice ({reason}) nor forward "
                f"({error}); diag, kron, blocks and full need no such product"
            ) from error
        return torch.stack(found).detach()

    def _shaped(self, vectors: Tensor) -> list[Tensor]:
        parts = vectors.split([leaf.numel() for leaf in self.leaves], 1)
        return [
            part.reshape(-1, *leaf.shape) for part, leaf in zip(parts, self.leaves, strict=True)
        ]


@contextmanager
def graph_of(
    model: nn.Module, batch: Batch, chosen: dict[str, nn.Parameter], output: Output
) -> Iterator[Graph]:
    """Run the model on a batch with copies of the chosen parameters.

    Fused attention and recurrent layers, which cannot be differentiated twice, are switched off
    until the block ends.
    """
    named = model.named_parameters()
    leaves = {name: p.detach().requires_grad_(name in chosen) for name, p in named}
    entries = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal entries
        entries += tensor.numel()
        return tensor

    def run(*values: Tensor, batch: Batch = batch) -> Tensor:
        # Copies of the inputs: the model may write to them, and they are read again.
        args, kwargs = _copied(batch.args), _copied(batch.kwargs)
        own = {**leaves, **dict(zip(chosen, values, strict=True))}
        return selector(output, batch.count)(torch.func.functional_call(model, own, args, kwargs))

    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.enable_grad())
        with saved_tensors_hooks(count, lambda tensor: tensor):
            f = run(*(leaves[name] for name in chosen))
        if not f.requires_grad:
            raise Refused("the model's output does not depend on the chosen parameters")
        yield Graph(f, [leaves[name] for name in chosen], entries, run)


def check_samples(graph: Graph, batch: Batch) -> None:
    """Raise if the model gives other outputs when it runs again on each half of the batch.

    To be called where the graph is open: random numbers have moved on since. The second graph
    keeps nothing.
    """
    f, half = graph.f.detach(), batch.count // 2
    halves = [batch.part(0, half), batch.part(half, batch.count - half)] if half else [batch]

    def differs(parts: list[Batch]) -> bool:
        with saved_tensors_hooks(lambda tensor: None, lambda kept: kept):
            again = torch.cat([graph.run(*graph.leaves, batch=part).detach() for part in parts])
        scale = float(f.abs().max()) if f.numel() else 0.0
        slack = 1e4 * torch.finfo(f.dtype).eps * scale
        return not torch.allclose(again, f, rtol=0, atol=slack, equal_nan=True)

    if differs(halves):
        if differs([batch]):
            raise Refused("the model's output is random; call model.eval() or fix its noise")
        raise Refused(
            "the model's output for a sample changes with the other samples of the batch; "
            "curvature is a sum over independent samples"
        )


def ggn_rows(graph: Graph, likelihood: Likelihood, y: Any, vectors: Tensor) -> Tensor:
    """Jᵀ H J v of ``vectors`` [K, P], [K, P]."""
    f = graph.f.detach()
    with torch.no_grad():
        jv = graph.product(vectors).detach()
        s = likelihood.product(f, jv, y)
    return graph.transposed(s)


def hessian_products(graph: Graph, likelihood: Likelihood, y: Any) -> Callable[[Tensor], Tensor]:
    """The function that takes vectors [K, P] to H v [K, P], H the Hessian of the summed nll."""
    with _twice():
        first = _first(likelihood.nll(graph.f, y), graph.leaves, None)

    def product(vectors: Tensor) -> Tensor:
        with _twice():
            return _pull(first, graph.leaves, graph._shaped(vectors))

    return product


@contextmanager
def _twice() -> Iterator[None]:
    """Refuse where torch has no second derivative."""
    try:
        yield
    except RuntimeError as error:
        if not re.search("not implemented|differentiated twice", str(error)):
            raise
        raise Refused(
            f"the Hessian needs a second derivative that torch does not have ({error}); "
            "method='exact', the Gauss-Newton curvature, needs none"
        ) from error


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_copied(entry) for entry in value)
    return value


def _first(f: Tensor, leaves: Sequence[Tensor], u: Tensor | None) -> list[Tensor]:
    """A first derivative that can be differentiated again."""
    with torch.enable_grad():
        found = torch.autograd.grad(
            f, leaves, u, create_graph=True, allow_unused=True, materialize_grads=True
        )
    check_differentiable(found)
    return list(found)


def check_differentiable(derivatives: Iterable[Tensor]) -> None:
    """Raise if a gradient that has none of its own is among what made these derivatives.

    Autograd ends the graph at a function marked as once differentiable, so that a second derivative
    by what lies behind it would be taken for zero.
    """
    seen: set[Node] = set()
    rest = [one.grad_fn for one in derivatives]
    while rest:
        node = rest.pop()
        if node is None or node in seen:
            continue
        if node.name().endswith("::Error"):
            raise Refused(
                "a function marked with @once_differentiable is to be differentiated twice"
            )
        seen.add(node)
        rest.extend(behind for behind, _ in node.next_functions)


def _pull(results: Sequence[Tensor], leaves: Sequence[Tensor], vectors: Sequence[Tensor]) -> Tensor:
    """[K, P]: gradients of the inner products of results with each of K vectors."""
    pairs = [(r, v) for r, v in zip(results, vectors, strict=True) if r.requires_grad]
    count = len(vectors[0])
    if not pairs:
        return leaves[0].new_zeros(count, sum(leaf.numel() for leaf in leaves))
    sources = [result for result, _ in pairs]

    def run(chosen: list[Tensor], batched: bool) -> Tensor:
        with torch.enable_grad():
            found = torch.autograd.grad(
                sources,
                list(leaves),
                chosen,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )
        rows = count if batched else 1
        parts = zip(found, leaves, strict=True)
        return torch.cat(
            [
                leaf.new_zeros(rows, leaf.numel())
                if part is None
                else part.to_dense().reshape(rows, -1)
                for part, leaf in parts
            ],
            1,
        )

    if count > 1:
        try:
            return run([vector for _, vector in pairs], True)
        except RuntimeError:
            pass  # An op that torch cannot vectorise: one vector after the other.
    return torch.cat([run([v[k] for _, v in pairs], False) for k in range(count)])
