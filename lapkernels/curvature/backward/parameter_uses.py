"""All uses of each parameter in a recorded pass.

A use is direct where its weight is the parameter itself or a one-to-one view of it (transposed,
reshaped), or made from it such that it is a use of the parameter again, as for the factors of a
product. For factors that are sums over uses, each direct use is enough.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import prod
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from lapkernels.curvature.recording.aliasing import storage_of
from lapkernels.curvature.recording.graph import Graph, Share, once_per_graph
from lapkernels.curvature.recording.trace import Value
from lapkernels.ops import Geometry
from lapkernels.rules import EmbeddingUse, ScaleUse, WeightUse
from lapkernels.rules.shape import Permute

Place = tuple[int, int]

# Indices in use, by shape, strides and device: of each layout there is one tensor.
_known_entries: WeakValueDictionary[Hashable, Tensor] = WeakValueDictionary()


@dataclass
class ParameterUses:
    """Direct uses by parameter, each with its place (node, operand) in the graph.

    Parameters that enter as expressions are in ``products``, with the op that makes a layer's
    weight from them, or in ``others`` if they are not in a layer.
    """

    direct: dict[str, dict[Place, Share]] = field(default_factory=dict)
    products: dict[str, str] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)


@once_per_graph
def parameter_uses(graph: Graph) -> ParameterUses:
    """Trace every weight of a graph back to its parameters."""
    found = ParameterUses()
    for position, node in enumerate(graph.sample_nodes):
        for index, use in node.rule.uses.items():
            value, chain = graph.behind_views(node.inputs[index])
            if value.parameter is not None:
                share = Share(value.parameter, node.path, use, chain)
                found.direct.setdefault(value.parameter, {})[position, index] = share
                continue
            known = {share.name: share for share in graph.derived.get((position, index), ())}
            for name in _behind(graph, value):
                share = known.get(name)
                layer = isinstance(use, WeightUse | EmbeddingUse)
                if share is not None and isinstance(share.use, WeightUse) >= layer:
                    found.direct.setdefault(name, {})[position, index] = share
                elif layer:
                    found.products[name] = graph.makers.get(id(value), node).where
                else:
                    found.others.add(name)
    return found


def _behind(graph: Graph, value: Value) -> list[str]:
    """Names of all parameters that a value depends on."""
    waiting, names, seen = [value], [], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if one.parameter is not None:
            names.append(one.parameter)
        elif id(one) in graph.makers:
            waiting += [operand for operand in graph.makers[id(one)].inputs if operand.active]
    return names


def matrix_entries(share: Share, parameter: Tensor) -> Tensor | None:
    """The parameter's entries in the order of the weight as matrices.

    The result is [groups, O / groups, I / groups * K], indices into the flattened parameter; None
    if that is the parameter's own order.
    """
    use = share.use
    assert isinstance(use, WeightUse)
    if _in_order(share, use):
        return None
    # Strides tell the order of a view, so nothing is read that a device has to be waited for.
    whole = torch.empty(parameter.shape, device="meta")
    view = _ordered(use, share.to_weight(whole))
    if storage_of(view) != storage_of(whole):
        entries = torch.arange(parameter.numel(), device="cpu").reshape(parameter.shape)
        matrix = weight_matrices(use, share.to_weight(entries))
        same = torch.equal(matrix.flatten(), entries.flatten())
        return None if same else matrix.to(parameter.device)
    if view.is_contiguous():
        return None
    return strided_entries(parameter, view.shape, view.stride())


def strided_entries(parameter: Tensor, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """Indices into the flattened parameter that a view of it has; the same tensor for the same."""
    steps = tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
    key = (tuple(shape), steps, parameter.device)
    found = _known_entries.get(key)
    if found is None:
        every = torch.arange(parameter.numel(), device=parameter.device)
        found = _known_entries[key] = every.as_strided(shape, steps).flatten(2)
    return found


def _in_order(share: Share, use: WeightUse) -> bool:
    """Whether the entries are in order, as far as that is known without comparing them."""
    if use.geometry.is_linear and use.flipped:
        moved = share.chain[0].rule if len(share.chain) == 1 else None
        return isinstance(moved, Permute) and list(moved.order) == [1, 0]
    return not share.chain and not use.flipped and not use.geometry.transposed


def weight_matrices(use: WeightUse, value: Tensor) -> Tensor:
    """A tensor of the weight's layout as [groups, O / groups, I / groups * K]."""
    return _ordered(use, value).flatten(2)


def _ordered(use: WeightUse, value: Tensor) -> Tensor:
    """The same as [groups, O / groups, I / groups, K], or [1, O, I] of a Linear layer."""
    geometry = use.geometry
    value = use.canonical(value)
    if geometry.is_linear:
        return value.unsqueeze(0)
    value = value.flatten(2).unflatten(0, (geometry.groups, -1))
    return value.transpose(1, 2) if geometry.transposed else value


def matrix_shape(use: WeightUse) -> tuple[int, int, int]:
    """(groups, O / groups, I / groups * K)."""
    groups, kernel = use.geometry.groups, prod(use.geometry.kernel_size)
    if use.geometry.is_linear:
        out, features = use.shape[-2:][::-1] if use.flipped else use.shape[-2:]
        return 1, out, features
    if use.geometry.transposed:
        return groups, use.shape[1], use.shape[0] // groups * kernel
    return groups, use.shape[0] // groups, use.shape[1] * kernel


def features_last(value: Tensor, geometry: Geometry) -> Tensor:
    """Columns [V, N, O, *out] ([V, N, T, O] for Linear) as [V, N, T, O]."""
    return value.flatten(2, -2) if geometry.is_linear else value.flatten(3).transpose(2, 3)


def added_positions(use: ScaleUse, s: Tensor) -> Tensor:
    """Columns [V, *out] of a broadcast weight with P entries as [V, N, T, P].

    T counts the entries that the weight was broadcast along.
    """
    along = use.along or use.shape
    aligned = (1,) * (s.dim() - 1 - len(along)) + tuple(along)
    where = use.samples
    pair = (1, 1) if aligned[where.dim] == 1 else (where.outer, where.inner)
    target = [*aligned[: where.dim], *pair, *aligned[where.dim + 1 :]]
    parts = where.split(s, 1)
    own = [2 + d for d, size in enumerate(target) if size > 1]
    shared = [2 + d for d, size in enumerate(target) if size == 1]
    count = prod(parts.shape[d] for d in own)
    return parts.permute(0, 1, *shared, *own).reshape(*parts.shape[:2], -1, count)


def token_indices(use: EmbeddingUse) -> Tensor:
    """Tokens [N, T]."""
    return use.samples.split(use.index()).flatten(1)


def tokens_read(use: EmbeddingUse) -> Tensor:
    """Whether each token [N, T] has a gradient: all but those at the padding index."""
    return token_indices(use) != use.padding_idx


def token_columns(use: EmbeddingUse, s: Tensor) -> Tensor:
    """Columns [V, N, T, D], zero at tokens that have no gradient."""
    entry = use.samples.split(s, 1).flatten(2, -2)
    return entry * tokens_read(use).to(entry.dtype).unsqueeze(-1)


def same_entries(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two layouts are equal."""
    return a is b or (a is not None and b is not None and torch.equal(a, b))
