"""Layers that torch runs as one function, as calls of the functions that they consist of.

An expansion is called as the function is, with ``call(function, *arguments)`` before its arguments.
It makes all its tensors by ``call``, which records them. It returns NotImplemented, before any
call, for what it does not cover; such a call is recorded op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lapkernels.rules.recurrent import GATES, lstm_cells, turned

Call = Callable[..., Any]
_NATIVE = {kind: getattr(torch, kind) for kind in GATES}


def states(
    kind: str, x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor], lengths: Tensor | None
) -> tuple[Tensor, ...]:
    """One direction of one layer on x [T, N, I], by torch.

    Returns W_hh and W_hr (if it has one), h_{t-1} of all steps, and then h_t [T, N, P], h_T
    [1, N, P], c_T. With ``lengths`` [N] of the samples there is a mask [T, N, 1] in front.
    """
    constants = [weights[1].detach()]
    if len(weights) % 2:
        constants.append(weights[-1].detach())
    biases = len(weights) > 3
    last = (biases, 1, 0.0, False, False)
    if lengths is None:
        given = first if kind == "lstm" else first[0]
        out, *ends = _NATIVE[kind](x.contiguous(), given, list(weights), *last, False)
    else:
        steps = torch.arange(len(x), device=x.device)
        mask = (steps[:, None] < lengths.to(x.device)).unsqueeze(2).to(x.dtype)
        constants.insert(0, mask)
        packed = pack_padded_sequence(x, lengths.cpu(), enforce_sorted=False)
        data, sizes, order, back = packed
        assert order is not None and back is not None
        sorted_first = [one.index_select(1, order) for one in first]
        given = sorted_first if kind == "lstm" else sorted_first[0]
        data, *ends = _NATIVE[kind](data, sizes, given, list(weights), *last)
        ends = [one.index_select(1, back) for one in ends]
        out, _ = pad_packed_sequence(PackedSequence(data, sizes, order, back), total_length=len(x))
    before = torch.cat([first[0].to(out), out[:-1]])
    return (*constants, before, out, *ends)


def projected_inputs(z: Tensor, y: Tensor, first: Tensor, mask: Tensor | None) -> tuple[Tensor]:
    """What the projection of an LSTM is applied to, [T, N, H]."""
    gates, _, cells = lstm_cells((z + y).unflatten(2, (4, -1)).detach(), first.detach(), mask)
    return (gates[:, :, 3] * cells.tanh(),)


def recurrence(
    kind: str,
    z: Tensor,
    y: Tensor,
    p: Tensor | None,
    first: Sequence[Tensor],
    before: Tensor,
    weights: Sequence[Tensor],
    mask: Tensor | None,
    *found: Tensor,
) -> tuple[Tensor, ...]:
    """The states that were found: a function of z, y, p and the first states."""
    return tuple(one.view_as(one) for one in found)


def turned_steps(x: Tensor, lengths: Tensor) -> tuple[Tensor]:
    """The first ``lengths`` [N] steps of x [T, N, F] in the opposite order."""
    return (turned(x, lengths),)


def _recurrent(kind: str, call: Call, *args: Any) -> Any:
    """torch.lstm and its like, for sequences that are not packed."""
    if len(args) != 9 or not isinstance(args[2], (list, tuple)):
        return NotImplemented
    x, given, params, biases, layers, dropout, train, both, batch_first = args
    if (train and dropout and layers > 1) or x.dim() != 3:
        return NotImplemented
    first = list(given) if kind == "lstm" else [given]
    x = call(Tensor.transpose, x, 0, 1) if batch_first else x
    x, *ends = stacked(kind, call, x, first, params, biases, layers, both, None)
    return (call(Tensor.transpose, x, 0, 1) if batch_first else x, *ends)


def stacked(
    kind: str,
    call: Call,
    x: Tensor,
    first: Sequence[Tensor],
    params: Sequence[Tensor],
    biases: bool,
    layers: int,
    both: bool,
    lengths: Tensor | None,
) -> list[Tensor]:
    """All layers and directions on x [T, N, I]: the last layer's states, and all last states."""
    directions = 1 + both
    size = len(params) // (layers * directions)
    found: list[list[Tensor]] = []
    for layer in range(layers):
        parts = []
        for direction in range(directions):
            place = layer * directions + direction
            own = [one if len(one) == 1 else call(Tensor.narrow, one, 0, place, 1) for one in first]
            weights = params[place * size : (place + 1) * size]
            given = _turned(call, x, lengths) if direction else x
            out, *ends = _layer(kind, call, given, own, weights, biases, lengths)
            parts.append(_turned(call, out, lengths) if direction else out)
            found.append(ends)
        x = call(torch.cat, parts, 2) if both else parts[0]
    if len(found) == 1:
        return [x, *found[0]]
    return [x, *(call(torch.cat, list(ends)) for ends in zip(*found, strict=True))]


def _turned(call: Call, x: Tensor, lengths: Tensor | None) -> Tensor:
    """Each sample's steps in the opposite order."""
    if lengths is None:
        return call(torch.flip, x, [0])
    return call(turned_steps, x, lengths)[0]


def _layer(
    kind: str,
    call: Call,
    x: Tensor,
    first: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: bool,
    lengths: Tensor | None,
) -> list[Tensor]:
    """One direction of one layer: all states, and the last ones."""
    b_ih, b_hh = weights[2:4] if biases else (None, None)
    projection = weights[-1] if len(weights) % 2 else None
    z = call(F.linear, x, weights[0], b_ih)
    found = call(states, kind, x, first, weights, lengths)
    mask, found = (None, found) if lengths is None else (found[0], found[1:])
    constants, found = (found[:1], found[1:]) if projection is None else (found[:2], found[2:])
    before, *found = found
    y, p = call(F.linear, before, weights[1], b_hh), None
    if projection is not None:
        (q,) = call(projected_inputs, z, y, first[1], mask)
        p = call(F.linear, q, projection)
    return call(recurrence, kind, z, y, p, first, before, list(constants), mask, *found)


def _self_attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    weight: Tensor | None,
    bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    zeros: bool,
    dropout: float,
    out_weight: Tensor,
    out_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    **options: Any,
) -> Any:
    """Attention of [T, N, E] to itself, without masks: one product for queries, keys and values."""
    same = key is query and value is query and query.dim() == 3 and weight is not None
    masked = key_padding_mask is not None or attn_mask is not None or options.get("is_causal")
    others = bias_k is not None or bias_v is not None or zeros or need_weights
    if not same or masked or others or (training and dropout) or options.get("static_k"):
        return NotImplemented
    found = call(F.linear, query, weight, bias)
    found = call(Tensor.unflatten, found, 2, (3, heads, width // heads))
    q, k, v = call(Tensor.unbind, call(Tensor.permute, found, (2, 1, 3, 0, 4)), 0)
    found = call(F.scaled_dot_product_attention, q, k, v)
    found = call(Tensor.flatten, call(Tensor.permute, found, (2, 0, 1, 3)), 2)
    return call(F.linear, found, out_weight, out_bias), None


KINDS = {native: kind for kind, native in _NATIVE.items()}
EXPANSIONS: dict[Any, Callable[..., Any]] = {
    native: partial(_recurrent, kind) for native, kind in KINDS.items()
} | {F.multi_head_attention_forward: _self_attention}
