r"""Scaled dot-product attention: out = P v, P = softmax(c q k^T + mask) along keys.

With dP = s v^T and dS = P ∘ (dP - sum_j P dP), columns are

    s_q = c dS k,      s_k = c dS^T q,      s_v = P^T s.

The derivatives are d out_td / d v_jd = P_tj, d out_td / d k_je = c P_tj (v_jd - out_td) q_te and
d out_td / d q_te = c sum_j P_tj (v_jd - out_td) k_je, so that a diagonal m passes as

    m_v = (P∘P)^T m,
    m_k = c² sum_t P_tj² q_te² B_tj,         B_tj = sum_d m_td (v_jd - out_td)²,
    m_q = c² sum_d m_td (sum_j P_tj (v_jd - out_td) k_je)²,

all exact. The last costs one product of size L × E × D for each query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lapkernels.ops.base.chunks import slices
from lapkernels.rules.base.rule import Call, Kept, Operand, Rule, Unsupported, only, register_rule
from lapkernels.rules.base.samples import MixesSamples, Samples

# Entries of P in memory at a time, over all columns or queries.
CHUNK = 1 << 20


@register_rule(
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    *("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_cudnn_attention"),
    "aten::_scaled_dot_product_efficient_attention",
)
class Attention(Rule):
    """q [*, T, E], k [*, L, E], v [*, L, D]; samples are in a batch dimension."""

    repeatable = True

    def __init__(self, call: Call, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        given = call.arguments(args, kwargs)
        q, k, v = args[:3]
        if given.get("dropout_p"):
            raise MixesSamples("its dropout makes the result random; call eval()")
        mask = given.get("attn_mask", given.get("attn_bias"))
        if any(operand.is_weight for operand in call.operands) or (mask and mask.active):
            raise Unsupported("attention to or by a weight")
        if any(len(group) > 1 for group in call.same):
            raise Unsupported("attention with one tensor as several operands")
        if q.shape[:-2] != k.shape[:-2] or k.shape[:-2] != v.shape[:-2]:
            raise Unsupported("attention with shared heads")
        self.samples = _samples(call, (q, k, v), mask)
        self.q, self.k, self.v = (operand.kept() for operand in (q, k, v))
        self.mask: Kept | None = None if mask is None else mask.kept()
        self.out = call.kept_output()
        self.causal = bool(given.get("is_causal"))
        scale = given.get("scale")
        self.scale: float = q.shape[-1] ** -0.5 if scale is None else scale
        self.size = len(call.operands)

    def columns(self, s: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        one = only(s)
        operands = (self.q.tensor, self.k.tensor, self.v.tensor)
        found = [
            one.new_empty(one.shape[0], *operand.shape) if want else None
            for operand, want in zip(operands, wanted, strict=False)
        ]
        for rows in self._rows():
            p = self._weights(rows)
            q, k, v, out = (operand[rows] for operand in (*operands, self.out.tensor))
            for some in slices(one.shape[0], max(1, CHUNK // max(1, p.numel()))):
                part = one[some, rows]
                if wanted[0] or wanted[1]:
                    d = part @ v.mT
                    d.sub_((part * out).sum(-1, keepdim=True)).mul_(p).mul_(self.scale)
                    if found[0] is not None:
                        found[0][some, rows] = d @ k
                    if found[1] is not None:
                        found[1][some, rows] = d.mT @ q
                if found[2] is not None:
                    found[2][some, rows] = p.mT @ part
        return self._padded(found)

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        one = only(m)
        found: list[list[Tensor]] = [[], [], []]
        for rows in self._rows():
            for parts, part in zip(found, self._diagonal(one[rows], rows, wanted), strict=True):
                if part is not None:
                    parts.append(part)
        return self._padded([torch.cat(parts) if parts else None for parts in found])

    def _diagonal(self, m: Tensor, rows: slice, wanted: Sequence[bool]) -> list[Tensor | None]:
        p = self._weights(rows)
        square = p.square()
        found: list[Tensor | None] = [None, None, square.mT @ m if wanted[2] else None]
        if wanted[1]:
            v, out = self.v.tensor[rows], self.out.tensor[rows]
            b = m @ v.square().mT - 2 * (m * out) @ v.mT
            b += (m * out.square()).sum(-1, keepdim=True)
            found[1] = (square * b).mT @ self.q.tensor[rows].square() * self.scale**2
        if wanted[0]:
            found[0] = self._query_diagonal(m, p, rows) * self.scale**2
        return found

    def _query_diagonal(self, m: Tensor, p: Tensor, batch: slice) -> Tensor:
        k, v, out = (kept.tensor[batch] for kept in (self.k, self.v, self.out))
        mean = p @ k
        parts = []
        for rows in _query_chunks(p, v.shape[-1]):
            weighted = p[..., rows, :].unsqueeze(-1) * k.unsqueeze(-3)  # [*, t, L, E]
            inner = v.mT.unsqueeze(-3) @ weighted  # [*, t, D, E]
            inner -= out[..., rows, :].unsqueeze(-1) * mean[..., rows, :].unsqueeze(-2)
            parts.append((m[..., rows, :].unsqueeze(-2) @ inner.square_()).squeeze(-2))
        return torch.cat(parts, -2)

    def _rows(self) -> Iterator[slice]:
        """Slices of the first batch dimension, which bound the entries of P in memory."""
        q, k = self.q.tensor, self.k.tensor
        entries = q.shape[1:-1].numel() * k.shape[-2]
        return slices(q.shape[0], max(1, CHUNK // max(1, entries)))

    def _weights(self, rows: slice) -> Tensor:
        """P of a slice of the batch; zero for a query whose keys are all masked."""
        q, k = self.q.tensor, self.k.tensor
        scores = q[rows] @ k[rows].mT
        scores *= self.scale
        if self.causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores.masked_fill_(~seen, float("-inf"))
        if self.mask is None:
            return scores.softmax(-1)
        mask = self.mask.tensor.expand(*q.shape[:-1], k.shape[-2])[rows]
        if mask.dtype == torch.bool:
            scores.masked_fill_(~mask, float("-inf"))
        else:
            scores += mask
        blind = (scores == float("-inf")).all(-1, keepdim=True)
        return scores.softmax(-1).masked_fill_(blind, 0)

    def _padded(self, found: list[Tensor | None]) -> list[Tensor | None]:
        return [*found, *[None] * (self.size - 3)]


def _query_chunks(p: Tensor, features: int) -> Iterator[slice]:
    queries = p.shape[-2]
    return slices(queries, max(1, CHUNK // max(1, p.numel() // max(1, queries) * features)))


def _samples(
    call: Call, operands: Sequence[Operand], mask: Operand | None
) -> tuple[Samples | None, ...]:
    """Samples of the results: q, k and v must agree, and a mask must fit."""
    found = {operand.samples for operand in operands} - {None}
    if not found and (mask is None or mask.samples is None):
        return tuple(None for _ in call.outputs)
    if call.count == 1:
        return call.everywhere()
    if mask is not None and mask.samples is not None:
        found.add(mask.samples.at(mask.samples.dim + call.out.dim() - len(mask.shape)))
    (where, *others) = found
    assert where is not None
    if others or where.dim >= call.out.dim() - 2:
        raise MixesSamples("its operands do not all hold their samples in one batch dimension")
    return tuple(where if out.dim() > where.dim else None for out in call.outputs)
