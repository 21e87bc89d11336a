"""Recurrence: one direction of one layer of an LSTM, a GRU or an RNN.

With the states of the forward pass known, the gates of step t come from two linear layers,

    z_t = W_ih x_t + b_ih,    y_t = W_hh h_{t-1} + b_hh,    h_t = step(z_t, y_t, h_{t-1}).

Both are recorded as layers with T positions; the second has constant inputs h. The op here links
them: from z, y and the first state it gives all h, where a change of y_t reaches h_t and, by W_hh,
all later states. So columns at z and y are total derivatives, found by one scan back through time
with all columns in the rows of its products, and the weights have the Jacobians s_z xᵀ and s_y hᵀ.

A projection of an LSTM, h_t = W_hr q_t, is a third such layer, p_t = W_hr q_t with constant q. With
a mask, the state of a sample stays as it is beyond the sample's length, where the result is zero.
A diagonal passes the same scan with squared derivatives, from op to op of torch's cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lapkernels.rules.base.rule import Call, Kept, Operand, Rule
from lapkernels.rules.base.samples import MixesSamples, Samples

# Gates of a cell: the rows of its weights, divided by its width.
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@dataclass(frozen=True)
class Slopes:
    """Derivatives of all steps, [T, N, ...], or their squares.

    ``gates`` [T, N, G, H] is that of a step's state in y, for an LSTM that of its cell in the first
    three gates. ``new`` is that of a GRU in the last gate of z, elsewhere that of y. ``stay`` is
    that of the state in the one before, at fixed y. An LSTM has the derivatives of its ``cell`` in
    the one before and of its state in its cell, ``shown``.
    """

    gates: Tensor
    new: Tensor | None = None
    stay: Tensor | None = None
    cell: Tensor | None = None
    shown: Tensor | None = None

    def masked(self, mask: Tensor) -> Slopes:
        """Where the mask [T, N, 1] is zero nothing moves; an LSTM's ``cell`` knows it already."""
        return replace(
            self,
            gates=self.gates * mask.unsqueeze(2),
            new=None if self.new is None else self.new * mask,
            stay=1 - mask if self.stay is None else self.stay * mask + (1 - mask),
            shown=None if self.shown is None else self.shown * mask,
        )


def _plain(x: Tensor) -> Tensor:
    return x


def lstm_cells(a: Tensor, first: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Gates (i, f, g, o) and cells before and after each step, from a [T, N, 4, H], c_0 [1, N, H].

    Where the mask is zero f is one and i zero.
    """
    gates = a.sigmoid()
    gates[:, :, 2] = a[:, :, 2].tanh()
    if mask is not None:
        gates[:, :, 0] *= mask
        gates[:, :, 1] *= mask
        gates[:, :, 1] += 1 - mask
    i, f, g, _ = gates.unbind(2)
    cells = [first[0]]
    for added, kept in zip((i * g).unbind(), f.unbind(), strict=True):
        cells.append(torch.addcmul(added, kept, cells[-1]))
    found = torch.stack(cells)
    return gates, found[:-1], found[1:]


def _lstm_slopes(a: Tensor, first: Tensor, mask: Tensor | None) -> Slopes:
    gates, before, after = lstm_cells(a, first, mask)
    i, f, g, o = gates.unbind(2)
    seen = after.tanh()
    slopes = torch.addcmul(gates, gates, gates, value=-1)
    slopes[:, :, 0] *= g
    slopes[:, :, 1] *= before
    slopes[:, :, 2] = torch.addcmul(i, i, g.square(), value=-1)
    slopes[:, :, 3] *= seen
    return Slopes(slopes, cell=f, shown=torch.addcmul(o, o, seen.square(), value=-1))


def _gru_slopes(z: Tensor, y: Tensor, before: Tensor, squared: bool) -> Slopes:
    """h' = (h - n) u + n with n = tanh(z_n + r y_n): as torch computes it, n is read twice."""
    square = torch.square if squared else _plain
    r, u = (z[:, :, :2] + y[:, :, :2]).sigmoid().unbind(2)
    n = torch.addcmul(z[:, :, 2], r, y[:, :, 2]).tanh()
    new = (1 + u.square() if squared else 1 - u) * square(1 - n.square())
    gates = torch.empty_like(y)
    gates[:, :, 0] = new * square(y[:, :, 2] * r * (1 - r))
    gates[:, :, 1] = square((before - n) * u * (1 - u))
    gates[:, :, 2] = new * square(r)
    return Slopes(gates, new=new, stay=square(u))


def turned(x: Tensor, lengths: Tensor) -> Tensor:
    """Of x [*, T, N, F] the first ``lengths`` [N] steps in the opposite order."""
    steps = torch.arange(x.shape[-3], device=x.device).unsqueeze(1)
    ends = lengths.to(x.device)
    index = torch.where(steps < ends, ends - 1 - steps, steps)
    return x.gather(-3, index.unsqueeze(2).expand_as(x))


class States(Rule):
    """The states of the forward pass, constants; those in ``fixed`` are the same for all samples.

    The others are [T, N, ...] or [1, N, ...].
    """

    repeatable = True
    differentiable = False

    def __init__(self, call: Call, kind: str, x: Operand, *args: object) -> None:
        super().__init__()
        self.samples = tuple(
            None if out.dim() < 3 else where
            for out, where in zip(call.outputs, _placed(call, x), strict=True)
        )


class Turned(Rule):
    """Each sample's steps in the opposite order, up to its length: its own transpose."""

    repeatable = True

    def __init__(self, call: Call, x: Operand, lengths: Operand) -> None:
        super().__init__()
        self.samples = _placed(call, x)
        self.lengths = lengths.kept()

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        return turned(s, self.lengths.tensor) if index == 0 else None

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor | None:
        return turned(m, self.lengths.tensor) if index == 0 else None


class Recurrence(Rule):
    """h_1 .. h_T [T, N, P], h_T [1, N, P] and c_T [1, N, H] of z, y [T, N, G H], p [T, N, P].

    ``first`` are the first states, h_0 and c_0. ``before`` [T, N, P] has the states h_{t-1},
    ``weights`` are W_hh and W_hr and ``mask`` is [T, N, 1]: all of them constants.
    """

    repeatable = True

    def __init__(
        self,
        call: Call,
        kind: str,
        z: Operand,
        y: Operand,
        p: Operand | None,
        first: Sequence[Operand],
        before: Operand,
        weights: Sequence[Operand],
        mask: Operand | None,
        *states: Operand,
    ) -> None:
        super().__init__()
        self.samples = _placed(call, z)
        for operand in (y, *([p] if p else []), *first):
            if operand.is_weight or operand.samples not in (None, z.samples):
                raise MixesSamples("its operands do not hold the same samples")
        self.kind, self.size = kind, len(call.operands)
        self.z, self.y, self.before = z.kept(), y.kept(), before.kept()
        self.first = [one.kept() for one in first]
        self.weights = [one.kept() for one in weights]
        self.mask: Kept | None = mask.kept() if mask else None

    def columns(self, s: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        return self._pulled(s, wanted, squared=False)

    def diagonal(self, m: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        columns = [None if one is None else one.unsqueeze(0) for one in m]
        found = self._pulled(columns, wanted, squared=True)
        return [None if one is None else one[0] for one in found]

    def _pulled(
        self, s: Sequence[Tensor | None], wanted: Sequence[bool], *, squared: bool
    ) -> list[Tensor | None]:
        weights = [one.tensor.square() if squared else one.tensor for one in self.weights]
        mask = None if self.mask is None else self.mask.tensor
        scan = _Scan(self._slopes(squared), weights, mask, s)
        states = scan.back(any(wanted[len(weights) + 1 :]))
        y = scan.columns(scan.y).flatten(3)
        z = y
        if scan.new:
            y_rest = scan.columns(scan.y)[:, :, :, :-1].flatten(3)
            z = torch.cat([y_rest, scan.columns(scan.new)], 3)
        p = [scan.columns(scan.p)] if scan.p else []
        found = [z, y, *p, *states[: len(self.first)]]
        return [*found, *[None] * (self.size - len(found))]

    def _slopes(self, squared: bool) -> Slopes:
        """The derivatives of all steps, or their squares."""
        z, y = (one.tensor.unflatten(2, (GATES[self.kind], -1)) for one in (self.z, self.y))
        mask = None if self.mask is None else self.mask.tensor
        square = torch.square if squared else _plain
        if self.kind == "lstm":
            slopes = _lstm_slopes(z + y, self.first[1].tensor, mask)
            if squared:
                found = (slopes.gates, slopes.cell, slopes.shown)
                gates, cell, shown = (one.square() for one in found if one is not None)
                slopes = Slopes(gates, cell=cell, shown=shown)
        elif self.kind == "gru":
            slopes = _gru_slopes(z, y, self.before.tensor, squared)
        elif self.kind == "rnn_tanh":
            slopes = Slopes(square(1 - (z + y).tanh().square()))
        else:
            slopes = Slopes((z + y > 0).to(z.dtype))
        return slopes if mask is None else slopes.masked(mask)


class _Scan:
    """Columns at all steps, from those at all states, at the last one and at the last cell.

    ``y`` has those at the gates of y, [V, N, G, H] for each step, ``new`` those at a GRU's last
    gate of z and ``p`` those at p.
    """

    def __init__(
        self,
        slopes: Slopes,
        weights: Sequence[Tensor],
        mask: Tensor | None,
        s: Sequence[Tensor | None],
    ) -> None:
        self.slopes, self.mask = slopes, mask
        self.weight = weights[0]
        self.projection = weights[1] if len(weights) > 1 else None
        self.out, self.last, self.cell = (*s, None)[:3]
        self.like = next(one for one in s if one is not None)
        self.y, self.new, self.p = list[Tensor](), list[Tensor](), list[Tensor]()

    def back(self, to_first: bool) -> list[Tensor | None]:
        """Run from the last step to the first; columns at the first states, if wanted."""
        slopes, weight, like = self.slopes, self.weight, self.like
        steps, count, gates, width = slopes.gates.shape
        columns, size = len(like), weight.shape[1]
        rows, flat = self._rows(steps, columns * count), (columns * count, gates * width)
        if self.last is not None:
            state = self.last.reshape(-1, size)
            state = state if rows is None else state + rows[-1]
        else:
            state = like.new_zeros(columns * count, size) if rows is None else rows[-1]
        cell = None if self.cell is None else self.cell.squeeze(1)
        kinds = [slopes.gates] if slopes.cell is None else slopes.gates.split((3, 1), 2)
        slopes_of = [kind.unbind() for kind in kinds]
        shown, kept, stay, new = (
            None if one is None else one.unbind()
            for one in (slopes.shown, slopes.cell, slopes.stay, slopes.new)
        )
        results = self._results(like, (steps, columns, count, gates, width), kinds)
        for t in reversed(range(steps)):
            seen = state.view(columns, count, size)
            hidden = seen
            if self.projection is not None:
                self.p.append(seen if self.mask is None else seen * self.mask[t])
                hidden = (state @ self.projection).view(columns, count, width)
            if shown is None or kept is None:
                moving = (hidden,)
            else:
                own = hidden * shown[t]
                cell = own if cell is None else own.add_(cell)
                moving = (cell, hidden)
            parts = [
                torch.mul(one.unsqueeze(2), its[t], out=None if into is None else into[t])
                for one, its, into in zip(moving, slopes_of, results, strict=True)
            ]
            y = torch.cat(parts, 2) if self._buffer is None else self._buffer[t]
            self.y.append(y)
            if kept is not None and cell is not None:
                cell = cell * kept[t]
            if new is not None:
                self.new.append(hidden * new[t])
            if not t and not to_first:
                break
            if rows is None or not t:
                state = y.view(flat) @ weight
            else:
                state = torch.addmm(rows[t - 1], y.view(flat), weight)
            if stay is not None:
                state = state + (seen * stay[t]).view(-1, size)
        first = [state.view(columns, 1, count, size)]
        return [*first, None if cell is None else cell.unsqueeze(1)]

    def columns(self, steps: Sequence[Tensor]) -> Tensor:
        """What was found at all steps, the last one first, as [V, T, ...]."""
        if steps is self.y and self._buffer is not None:
            return self._buffer.transpose(0, 1)
        return torch.stack(list(steps)[::-1], 1)

    def _results(
        self, like: Tensor, shape: tuple[int, ...], kinds: Sequence[Tensor]
    ) -> list[Sequence[Tensor] | None]:
        """Where columns at the gates of each kind go: into one buffer [T, V, N, G, H].

        Without it autograd can differentiate what is found.
        """
        self._buffer: Tensor | None = None if like.requires_grad else like.new_empty(shape)
        if self._buffer is None:
            return [None] * len(kinds)
        sizes = [kind.shape[2] for kind in kinds]
        return [part.unbind() for part in self._buffer.split(sizes, 3)]

    def _rows(self, steps: int, rows: int) -> Tensor | None:
        """Columns at all states as [T, V N, P], zero beyond a sample's length."""
        if self.out is None:
            return None
        out = self.out.transpose(0, 1)
        return (out if self.mask is None else out * self.mask.unsqueeze(1)).reshape(steps, rows, -1)


def _placed(call: Call, x: Operand) -> tuple[Samples | None, ...]:
    """Samples in the results, each of which has them in dimension 1, as x does."""
    where = x.samples
    if where is None or (where.count > 1 and where.dim != 1):
        raise MixesSamples("its samples are not rows of its steps")
    return call.place(where, lambda samples: samples)
