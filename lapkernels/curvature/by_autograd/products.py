"""Derivatives of one batch by autograd alone: Jacobian, Gauss-Newton and Hessian products.

They serve every model that autograd can differentiate, with no rules. J v comes from forward mode,
before a backward graph is made, so that not both are in memory. Where forward mode differs from the
backward pass, or torch lacks it, J v is the derivative of Jᵀ u in u, which keeps the graph of the
backward pass too. Several vectors go at once, by ``vmap`` where torch can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from lapkernels.curvature.by_autograd.forward_mode import (
    Differentiated,
    forward_product,
    nodes_behind,
)
from lapkernels.curvature.data.batches import Batch, Output, selector
from lapkernels.curvature.data.contents import Contents
from lapkernels.curvature.data.random_state import random_state_kept
from lapkernels.curvature.errors import Refused, reference
from lapkernels.curvature.recording.run_model import call_model, plain_attention, plain_ops
from lapkernels.likelihoods import Likelihood
from lapkernels.ops.base.chunks import slices

# Bytes of vectors at once, if the model itself takes less.
BUDGET = 1 << 24


class Graph:
    """The outputs f of a batch, from ``run`` on copies ``leaves`` of the parameters.

    ``entries`` counts the numbers that autograd's graph keeps, once measured. Vectors are given and
    returned as a tensor [K, *leaf.shape] for each leaf.
    """

    def __init__(
        self, run: Callable[..., Tensor], leaves: list[Tensor], chosen: dict[str, nn.Parameter]
    ) -> None:
        self.run, self.leaves = run, leaves
        self._names = {id(parameter): name for name, parameter in chosen.items()}
        self.entries = 0
        self._f: Tensor | None = None
        self._forward = False

    @property
    def f(self) -> Tensor:
        """The outputs with their graph, made at first use."""
        return self.keep() if self._f is None else self._f

    @property
    def size(self) -> int:
        """P."""
        return sum(leaf.numel() for leaf in self.leaves)

    def keep(self, *, twice: bool = False) -> Tensor:
        """Make the graph; without fused attention for second derivatives."""
        self._f = None
        with Differentiated() as watched, _attention(twice), torch.enable_grad():
            self._f = self.run(*self.leaves)
        self._forward = watched.alike(self._f)
        _check_references(self._f, self._names)
        if not self._f.requires_grad:
            raise Refused("the model's output does not depend on the chosen parameters")
        return self._f

    def look(self, parts: Sequence[Batch], *, twice: bool = False) -> Tensor:
        """The outputs of parts of the batch, whose graphs are measured and dropped."""
        try:
            return self._counted(parts, twice, keep=False)
        except TypeError:  # A model that runs autograd inside needs its saved tensors.
            return self._counted(parts, twice, keep=True)
        except RuntimeError as error:
            what = "the model runs torch.func, in which memory cannot be counted"
            if len(parts) > 1:
                what = "the model runs on the whole batch and not on half of it"
            elif "saved tensor hooks" not in str(error):
                raise
            raise Refused(
                f"{what} ({error}): products and Hessians take samples in parts; diag, kron, "
                "blocks and full by Gauss-Newton methods do not"
            ) from error

    def _counted(self, parts: Sequence[Batch], twice: bool, keep: bool) -> Tensor:
        sizes: list[int] = []

        def pack(tensor: Tensor) -> Tensor | None:
            sizes.append(tensor.numel())
            return tensor if keep else None

        with (
            saved_tensors_hooks(pack, lambda kept: kept),
            _attention(twice),
            torch.enable_grad(),
        ):
            f = torch.cat([self.run(*self.leaves, batch=part).detach() for part in parts])
        self.entries = sum(sizes)
        return f

    def chunk(self, budget: int | None, entries: int) -> int:
        """Number of vectors at once where one graph keeps ``entries`` numbers."""
        one = max(1, 2 * entries + self.size) * self.leaves[0].element_size()
        return max(1, (max(one, BUDGET) if budget is None else budget) // one)

    def transposed(self, s: Tensor) -> list[Tensor]:
        """Jᵀ s of ``s`` [K, *f.shape]."""
        return _pull([self.f], self.leaves, [s])

    def product(self, vectors: Sequence[Tensor], step: int) -> Tensor:
        """J v [K, *f.shape], ``step`` vectors at a time."""
        chunks = [[v[some] for v in vectors] for some in slices(len(vectors[0]), step)]
        reason = "that is not what a backward pass differentiates"
        try:
            with plain_attention:
                found = [forward_product(self.run, self.leaves, some) for some in chunks]
            # Only a graph shows what a backward pass would do.
            self.keep()
            if self._forward:
                return torch.cat(found)
        except Refused:
            raise
        except RuntimeError as error:
            reason = str(error)
        try:
            self.keep(twice=True)
            return torch.cat([self._transposed_twice(some) for some in chunks])
        except RuntimeError as error:
            raise Refused(
                f"J v can be found neither by differentiating twice ({error}) nor forward "
                f"({reason}); diag, kron, blocks and full need no such product"
            ) from error

    def _transposed_twice(self, vectors: Sequence[Tensor]) -> Tensor:
        # Any u will do but zero, where some ops' backward is not smooth.
        f = self.f
        spread = torch.linspace(0.5, 1.5, f.numel(), dtype=f.dtype, device=f.device)
        u = spread.reshape(f.shape).requires_grad_()
        pulled = _first(f, self.leaves, u)
        return _pull(pulled, [u], vectors)[0].detach()

    def shaped(self, vectors: Tensor) -> list[Tensor]:
        """Vectors [K, P] by leaf."""
        parts = vectors.split([leaf.numel() for leaf in self.leaves], 1)
        return [
            part.reshape(-1, *leaf.shape) for part, leaf in zip(parts, self.leaves, strict=True)
        ]


def flat(parts: Sequence[Tensor]) -> Tensor:
    """Vectors [K, P] of those by leaf."""
    return torch.cat([part.reshape(len(part), -1) for part in parts], 1)


@contextmanager
def graph_of(
    model: nn.Module, batch: Batch, chosen: dict[str, nn.Parameter], output: Output
) -> Iterator[Graph]:
    """The model on a batch with copies of the chosen parameters.

    Fused layers, which cannot be differentiated twice or forward, are switched off until the block
    ends.
    """
    named = model.named_parameters()
    leaves = {name: p.detach().requires_grad_(name in chosen) for name, p in named}

    def run(*values: Tensor, batch: Batch = batch) -> Tensor:
        own = {**leaves, **dict(zip(chosen, values, strict=True))}
        return selector(output, batch.count)(call_model(model, batch.args, batch.kwargs, own))

    with (
        plain_ops(Contents.of(model), fused_layers=False),
        random_state_kept(model, batch.args, batch.kwargs),
    ):
        yield Graph(run, [leaves[name] for name in chosen], chosen)


def _check_references(f: Tensor, names: dict[int, str]) -> None:
    """Raise if ``f`` depends on a parameter itself instead of its copy."""
    for node in nodes_behind([f]):
        name = names.get(id(getattr(node, "variable", None)))
        if name is not None:
            raise Refused(reference("the model", name))


def _attention(twice: bool) -> AbstractContextManager[Any]:
    return plain_attention if twice else nullcontext()


def check_samples(graph: Graph, batch: Batch, f: Tensor, again: Tensor) -> None:
    """Raise if the two halves of a batch gave outputs ``again`` that differ from ``f``, of all.

    The random state has changed in between.
    """
    scale = float(f.abs().max()) if f.numel() else 0.0
    slack = 1e4 * torch.finfo(f.dtype).eps * scale

    def differs(other: Tensor) -> bool:
        return not torch.allclose(other, f, rtol=0, atol=slack, equal_nan=True)

    if differs(again):
        if differs(graph.look([batch])):
            raise Refused("the model's output is random; call model.eval() or fix its noise")
        raise Refused(
            "the model's output for a sample changes with the other samples of the batch; "
            "curvature is a sum over independent samples"
        )


def hessian_products(graph: Graph, likelihood: Likelihood, y: Any) -> Callable[[Tensor], Tensor]:
    """The function that takes vectors [K, P] to H v [K, P], H the Hessian of the summed nll."""
    with _twice(), torch.enable_grad():
        first = _first(likelihood.nll(graph.f, y), graph.leaves, None)

    def product(vectors: Tensor) -> Tensor:
        with _twice():
            return flat(_pull(first, graph.leaves, graph.shaped(vectors)))

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


def _first(f: Tensor, leaves: Sequence[Tensor], u: Tensor | None) -> list[Tensor]:
    """A first derivative that can be differentiated again."""
    with torch.enable_grad():
        found = torch.autograd.grad(
            f, leaves, u, create_graph=True, allow_unused=True, materialize_grads=True
        )
    check_differentiable(found)
    return list(found)


def check_differentiable(derivatives: Iterable[Tensor]) -> None:
    """Raise if these derivatives depend on a gradient that cannot be differentiated.

    Autograd ends the graph at a once-differentiable function, so a second derivative through it
    would silently be zero.
    """
    if any(node.name().endswith("::Error") for node in nodes_behind(derivatives)):
        raise Refused("a function marked with @once_differentiable is to be differentiated twice")


def _pull(
    results: Sequence[Tensor], leaves: Sequence[Tensor], vectors: Sequence[Tensor]
) -> list[Tensor]:
    """[K, *leaf.shape]: gradients of the inner products of results with each of K vectors."""
    pairs = [(r, v) for r, v in zip(results, vectors, strict=True) if r.requires_grad]
    count = len(vectors[0])

    def run(chosen: list[Tensor], batched: bool) -> list[Tensor]:
        with torch.enable_grad():
            found = torch.autograd.grad(
                [result for result, _ in pairs],
                list(leaves),
                chosen,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )
        lead = (count,) if batched else (1,)
        return [
            leaf.new_zeros(*lead, *leaf.shape)
            if part is None
            else part.to_dense().reshape(*lead, *leaf.shape)
            for part, leaf in zip(found, leaves, strict=True)
        ]

    if not pairs:
        return [leaf.new_zeros(count, *leaf.shape) for leaf in leaves]
    if count == 1:
        return run([vector[0] for _, vector in pairs], False)
    try:
        return run([vector for _, vector in pairs], True)
    except RuntimeError:  # An op that torch cannot vectorise: one vector after the other.
        rows = [run([v[k] for _, v in pairs], False) for k in range(count)]
        return [torch.cat(parts) for parts in zip(*rows, strict=True)]
