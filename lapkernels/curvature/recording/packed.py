"""Packed sequences: recorded as padded ones in the order of the batch, with each sample's length.

Packing sorts samples by length and puts the rows of all samples that reach a step side by side. No
rule follows samples through that, nor does one have to: what is packed or sorted here is known by
the padded tensor that it was made from. Recurrent layers run on that, and unpacking or undoing the
order gives the padded result. Whatever else reads a packed or sorted tensor has lost the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from lapkernels.curvature.errors import SamplesLost
from lapkernels.curvature.recording.layers import KINDS, stacked
from lapkernels.curvature.recording.trace import Value
from lapkernels.rules import Samples

Call = Callable[..., Any]
PACKING = {
    *(torch._pack_padded_sequence, torch._pad_packed_sequence, *KINDS),
    *(Tensor.index_select, torch.index_select, Tensor.__getitem__),
}


@dataclass(frozen=True)
class Sorted:
    """A tensor whose samples, in dimension ``dim`` of ``source``, were put into an ``order``."""

    tensor: Tensor
    source: Tensor
    dim: int
    order: Tensor


@dataclass(frozen=True)
class Rows:
    """The rows of a packed sequence, made of ``padded`` [T, N, *], which is zero beyond lengths.

    ``lengths`` [N] are in the order of the batch; the rows are in ``order``, if that is another.
    """

    tensor: Tensor
    padded: Tensor
    lengths: Tensor
    order: Tensor | None


class Packing:
    """Follows sorted and packed tensors by their id.

    ``define`` tells the recorder of a tensor, ``samples`` looks up where a tensor has its samples.
    """

    def __init__(
        self,
        count: int,
        define: Callable[[Tensor, Value], None],
        value: Callable[[Tensor], Value],
        call: Call,
    ) -> None:
        self.count, self._define, self._value, self._call = count, define, value, call
        self._sorted: dict[int, Sorted] = {}
        self._rows: dict[int, Rows] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call that sorts, packs or unpacks; NotImplemented for any other."""
        if self.count == 1 or kwargs:
            return NotImplemented
        if func in (Tensor.index_select, torch.index_select):
            return self._reordered(*args)
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            return self._reordered(args[0], 0, args[1])
        if func is torch._pack_padded_sequence:
            return self._packed(*args)
        if func is torch._pad_packed_sequence and id(args[0]) in self._rows:
            return self._unpacked(self._rows[id(args[0])], *args[1:])
        if func in KINDS and args and id(args[0]) in self._rows:
            return self._recurrent(KINDS[func], self._rows[id(args[0])], *args[1:])
        return NotImplemented

    def _reordered(self, x: Tensor, dim: int, index: Tensor) -> Any:
        """Samples in another order, or back in that of the batch."""
        if tuple(index.shape) != (self.count,) or index.dtype != torch.long:
            return NotImplemented
        known = self._sorted.get(id(x))
        if known is not None:
            back = dim == known.dim and _is_range(known.order[index])
            return known.source if back else NotImplemented
        if self._value(x).samples != Samples(self.count, dim) or not _is_range(index.sort()[0]):
            return NotImplemented
        return self._in_order(x, dim, index)

    def _in_order(self, x: Tensor, dim: int, order: Tensor | None) -> Tensor:
        if order is None:
            return x
        tensor = x.index_select(dim, order)
        self._sorted[id(tensor)] = Sorted(tensor, x, dim, order)
        self._lose(tensor, "puts samples in another order")
        return tensor

    def _packed(self, x: Tensor, lengths: Tensor, batch_first: bool) -> Any:
        known = self._sorted.get(id(x))
        source, order = (x, None) if known is None else (known.source, known.order)
        where = 0 if batch_first else 1
        if self._value(source).samples != Samples(self.count, where):
            return NotImplemented
        data, sizes = torch._pack_padded_sequence(x, lengths, batch_first)
        own = lengths.new_empty(self.count)
        own[slice(None) if order is None else order.to(own.device)] = lengths
        padded = self._call(Tensor.transpose, source, 0, 1) if batch_first else source
        if len(padded) > len(sizes):
            padded = self._call(Tensor.narrow, padded, 0, 0, len(sizes))
        padded = self._outside(padded, own, 0)
        self._constant(own, Samples(self.count))
        self._constant(sizes, None)
        return self._as_rows(data, Rows(data, padded, own, order)), sizes

    def _outside(self, padded: Tensor, lengths: Tensor, value: float) -> Tensor:
        """A value at the steps beyond each sample's length."""
        steps = torch.arange(len(padded), device=lengths.device)
        mask = (steps[:, None] >= lengths).to(padded.device)
        mask = mask.reshape(*mask.shape, *(1 for _ in padded.shape[2:]))
        self._constant(mask, Samples(self.count, 1))
        return self._call(Tensor.masked_fill, padded, mask, value)

    def _unpacked(
        self, rows: Rows, sizes: Tensor, batch_first: bool, value: float, total: int
    ) -> tuple[Tensor, Tensor]:
        padded, lengths = rows.padded, rows.lengths
        if total > len(padded):
            zeros = (0, 0) * (padded.dim() - 1)
            padded = self._call(F.pad, padded, (*zeros, 0, total - len(padded)))
        if value != 0:
            padded = self._outside(padded, lengths, value)
        if batch_first:
            padded = self._call(Tensor.transpose, padded, 0, 1)
        dim = 0 if batch_first else 1
        return self._in_order(padded, dim, rows.order), self._in_order(lengths, 0, rows.order)

    def _recurrent(
        self,
        kind: str,
        rows: Rows,
        sizes: Tensor,
        given: Any,
        params: Sequence[Tensor],
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        both: bool,
    ) -> Any:
        first = [self._first(one, rows) for one in (given if kind == "lstm" else [given])]
        if (train and dropout and layers > 1) or any(one is None for one in first):
            return NotImplemented
        states = [one for one in first if one is not None]
        out, *ends = stacked(
            kind, self._call, rows.padded, states, params, biases, layers, both, rows.lengths
        )
        data = pack_padded_sequence(out, rows.lengths.cpu(), enforce_sorted=False).data
        found = self._as_rows(data, Rows(data, out, rows.lengths, rows.order))
        return (found, *(self._in_order(one, 1, rows.order) for one in ends))

    def _first(self, state: Tensor, rows: Rows) -> Tensor | None:
        """A first state in the order of the batch, as the rows are; None if it is in another."""
        known = self._sorted.get(id(state))
        if known is not None:
            same = rows.order is not None and torch.equal(known.order, rows.order)
            return known.source if same else None
        return state if rows.order is None or not state.any() else None

    def _as_rows(self, data: Tensor, rows: Rows) -> Tensor:
        self._rows[id(data)] = rows
        self._lose(data, "computes with the rows of a packed sequence")
        return data

    def _lose(self, tensor: Tensor, what: str) -> None:
        error = SamplesLost(f"the model {what}")
        self._define(tensor, Value(tensor.shape, tensor.dtype, None, False, lost=error))

    def _constant(self, tensor: Tensor, samples: Samples | None) -> None:
        self._define(tensor, Value(tensor.shape, tensor.dtype, samples, False))


def _is_range(index: Tensor) -> bool:
    return bool((index == torch.arange(len(index), device=index.device)).all())
