"""Sums of Kronecker factors: the contribution of each use of a parameter, by its kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from lapkernels import ops
from lapkernels.curvature.backward.parameter_uses import (
    ParameterUses,
    Place,
    added_positions,
    features_last,
    matrix_entries,
    matrix_shape,
    parameter_uses,
    same_entries,
    strided_entries,
    token_columns,
    token_indices,
    tokens_read,
)
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.passes.passes import Pass
from lapkernels.curvature.quantities.loop import ColumnSum
from lapkernels.curvature.recording.graph import Share
from lapkernels.curvature.results.kronecker import Factors
from lapkernels.ops import Geometry
from lapkernels.ops.base.precision import wide
from lapkernels.rules import EmbeddingUse, ScaleUse, Use, WeightUse
from lapkernels.rules.affine import LINEAR
from lapkernels.rules.base.shared import Scaled, reads_once
from lapkernels.rules.windows.window import Window

# Bytes of a factor of the size of a parameter squared.
LIMIT = 1 << 30


@dataclass(eq=False)
class Total:
    """A sum of output factors, shared by parameters whose columns were always the same."""

    value: Tensor
    owners: int = 1


@dataclass(eq=False)
class Sums:
    """The sums of one parameter of one ``kind``; None before the first term.

    ``output_size`` and ``input_size`` are the shapes of its factors; some have no input factor.
    """

    kind: type
    output_size: tuple[int, ...]
    input_size: tuple[int, ...] | None = None
    entries: Tensor | None = None
    groups: int = 1
    output: Total | None = None
    input: Tensor | None = None
    pending: list[Tensor] = field(default_factory=list)
    # Of a ``Tied`` weight: the positions of a sample in this batch.
    positions: int = 0


@dataclass
class Latest:
    """The factor of some columns, for the sums of all parameters with these columns.

    ``view`` [V, N, T, O] is a view of the ``given`` columns.
    """

    given: Tensor
    view: Tensor
    value: Tensor
    sums: list[Sums]

    def serves(self, sums: Sums, given: Tensor, view: Tensor) -> bool:
        """Whether a parameter has these columns, as a layer's bias has those of its weight.

        False for one that was served already: it has them again, from another use.
        """
        same = self.given is given and self.view.data_ptr() == view.data_ptr()
        same = same and _strides(self.view) == _strides(view)
        return same and sums not in self.sums and self.value.shape == sums.output_size

    def add(self) -> None:
        """Add the value: once, if one sum serves all parameters or can do so from now on."""
        total, owners = self.sums[0].output, len(self.sums)
        together = all(sums.output is total for sums in self.sums)
        if together and total is None:
            total = Total(self.value, owners)
            for sums in self.sums:
                sums.output = total
        elif together and total is not None and total.owners == owners:
            total.value += self.value
        else:
            for sums in self.sums:
                known = sums.output
                sums.output = Total(
                    self.value.clone() if known is None else known.value + self.value
                )


class KroneckerSums(ColumnSum):
    """Sums of the factors of all parameters over batches."""

    def __init__(self, parameters: dict[str, nn.Parameter], reduce: bool) -> None:
        self.parameters = parameters
        self.reduce = reduce
        self.sums: dict[str, Sums] = {}
        self._several: set[str] = set()
        self._latest: Latest | None = None

    def begin(self, one: Pass) -> Pass:
        """Start a batch: sort the uses by kind, add the input factors, which need no columns."""
        uses = parameter_uses(one.graph)
        handed: dict[Place, list[Share]] = {}
        self._several = set()
        for name in self.parameters:
            found = uses.direct.get(name, {})
            kind = _kind(name, found.values(), uses, self.parameters[name])
            if kind is None:
                continue
            several = len(found) > 1
            self._start(name, kind, list(found.values()))
            if kind is Block and (several or name in uses.others):
                # Cross terms between uses need the sum of their Jacobians.
                continue
            for place, share in found.items():
                handed.setdefault(place, []).append(share)
            if several:
                self._several.add(name)
            all_uses = [share.use for share in found.values()]
            if kind is WeightUse:
                self._add_weight_input(name, [u for u in all_uses if isinstance(u, WeightUse)])
            elif kind is EmbeddingUse:
                tables = [u for u in all_uses if isinstance(u, EmbeddingUse)]
                self._add_embedding_input(name, tables)
            elif kind is Tied:
                self._add_tied_input(name, all_uses)
        # Other shares than the graph's, with a cache of their own.
        memo = one.graph.memo.setdefault("factors", {})
        known = one.graph.derived
        shares = {place: some[0] for place, some in handed.items() if place not in known}
        derived = {place: tuple(some) for place, some in handed.items() if place in known}
        graph = replace(one.graph, shares=shares, derived=derived, memo=memo)
        one = replace(one, graph=graph)
        return one.keeping() if self.reduce and self._several else one

    def share(self, share: Share, s: Tensor) -> None:
        sums, use = self.sums[share.name], share.use
        if sums.kind is Block:
            for columns, rows in use.chunks(s):
                self._add_block(sums, share.jacobian(s[columns], rows))
        elif isinstance(use, WeightUse) and sums.kind is Tied:
            columns = use.arrange(s).flatten(2, -2)
            columns = columns.sum(2) if self.reduce else columns
            norms = torch.linalg.vector_norm(columns.flatten(0, -2), dim=0)
            assert sums.input is not None
            sums.input[0].addcmul_(norms, norms, value=1 / sums.positions)
        elif isinstance(use, WeightUse):
            self._add_output(share.name, use.arrange(s), use.geometry, s)
        elif isinstance(use, EmbeddingUse):
            self._add_output(share.name, token_columns(use, s), LINEAR, s)
        else:
            assert isinstance(use, ScaleUse)
            self._add_output(share.name, added_positions(use, s), LINEAR, s)

    def scaled(self, share: Share, columns: Scaled) -> None:
        sums, rows, factor = self.sums[share.name], columns.rows, columns.factor
        once = reads_once(share.use, rows.shape[1]) and share.name not in self._several
        if sums.kind is Block or not once:
            super().scaled(share, columns)
        elif not self._is_served(sums, rows, rows):
            # sum_{v,n} s sᵀ.
            value = (rows.T @ rows).mul_(factor.T @ factor).unsqueeze(0)
            self._latest = Latest(rows, rows, value, [sums])

    def window(self, share: Share, window: Window, size: Sequence[int]) -> None:
        use, ones = share.use, (1,) * len(size)
        weight = isinstance(use, WeightUse) and len(use.geometry.kernel_size) == len(size)
        added = isinstance(use, ScaleUse) and (use.along or use.shape)[1:] == ones
        if self.sums[share.name].kind is Block or not (weight or added):
            super().window(share, window, size)
            return
        # An output factor does not depend on where a window lies: a lane is a sample.
        geometry = use.geometry if isinstance(use, WeightUse) else Geometry.conv(ones)
        self._add_output(share.name, window.s.movedim(-1, 1), geometry, window.s)

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        sums = self.sums.get(name)
        if sums is None or sums.kind is not Block:
            raise Refused(
                f"{name} has no Kronecker factors: only its gradient as a whole is known. diag, "
                "blocks and full work, or leave it out with params="
            )
        self._add_block(sums, g.reshape(*g.shape[:2], -1))

    def finish(self) -> None:
        """Add the outer products of sums over several uses, which are complete now."""
        for name in self._several:
            sums = self.sums[name]
            if sums.pending:
                total = torch.stack(sums.pending).sum(0).unsqueeze(2)
                value = ops.kronecker_output(total, Geometry(groups=sums.groups))
                Latest(total, total, value, [sums]).add()
                sums.pending.clear()

    def factors(self, name: str, count: int) -> Factors:
        """The result for a parameter; a layer's weight and bias may share a tensor."""
        self._add_latest()
        shape = tuple(self.parameters[name].shape)
        sums, parameter = self.sums.get(name), self.parameters[name]
        zeros = partial(parameter.new_zeros, dtype=wide(parameter.dtype))
        if sums is not None:
            output = zeros(sums.output_size) if sums.output is None else sums.output.value
            inputs = sums.input
            if inputs is None and sums.input_size is not None:
                inputs = zeros(sums.input_size)
            return Factors(shape, count, output, inputs, sums.entries)
        if len(shape) < 2:
            return Factors(shape, count, zeros(1, prod(shape), prod(shape)), used=False)
        out, features = shape[0], prod(shape[1:])
        inputs = zeros(1, features, features)
        return Factors(shape, count, zeros(1, out, out), inputs, used=False)

    def _start(self, name: str, kind: type, shares: list[Share]) -> None:
        """Start a parameter's sums, or check that this batch uses it as others did."""
        parameter, use = self.parameters[name], shares[0].use if shares else None
        size = prod(parameter.shape)
        if isinstance(use, WeightUse) and kind is WeightUse:
            layouts = [matrix_entries(share, parameter) for share in shares]
            weights = [share.use for share in shares if isinstance(share.use, WeightUse)]
            shapes = {matrix_shape(one) for one in weights}
            if len(shapes) > 1 or any(not same_entries(layouts[0], one) for one in layouts[1:]):
                raise Refused(_tied(name, "as weights of different layouts"))
            g, out, features = matrix_shape(use)
            made = Sums(kind, (g, out, out), (g, features, features), layouts[0], g)
        elif kind is EmbeddingUse or kind is Tied:
            rows, width = parameter.shape
            if self.reduce and kind is EmbeddingUse:
                _check_size(name, rows, parameter, "sharing='expand', where it is diagonal,")
            inputs = (1, rows, rows) if self.reduce and kind is EmbeddingUse else (1, rows)
            order = strided_entries(parameter, (1, width, rows), (size, 1, width))
            made = Sums(kind, (1, width, width), inputs, order)
        else:
            _check_size(name, size, parameter, "diag or params= without it")
            made = Sums(kind, (1, size, size))
        known = self.sums.setdefault(name, made)
        if (known.kind, known.groups) != (kind, made.groups) or not same_entries(
            known.entries, made.entries
        ):
            raise Refused(f"{name} is used as another kind of weight in another batch")

    def _add_weight_input(self, name: str, uses: Sequence[WeightUse]) -> None:
        sums = self.sums[name]
        positions = sum(use.positions for use in uses)
        if positions == 0:
            return
        scale = positions ** (-2.0 if self.reduce else -1.0)
        if self.reduce and len(uses) > 1:
            parts = [ops.unfolded(use.x(), use.geometry).sum(2) for use in uses]
            mean = torch.stack(parts).sum(0) / positions
            sums.input = _added(sums.input, torch.einsum("nga,ngb->gab", mean, mean))
            return
        for use in uses:
            sums.input = ops.kronecker_input(
                use.x(), use.geometry, reduce=self.reduce, out=sums.input, scale=scale
            )

    def _add_tied_input(self, name: str, uses: Sequence[Use]) -> None:
        """What needs no columns: the share of each token, and x xᵀ on the side of the features."""
        sums = self.sums[name]
        layers = [use for use in uses if isinstance(use, WeightUse)]
        tables = [use for use in uses if isinstance(use, EmbeddingUse)]
        if self.reduce:
            sums.positions = len(uses)
        else:
            sums.positions = sum(use.positions for use in layers)
            sums.positions += sum(token_indices(use).shape[1] for use in tables)
        self._add_embedding_input(name, tables)
        for use in layers:
            known = None if sums.output is None else sums.output.value
            scale = use.positions**-2.0 if self.reduce else 1.0
            value = ops.kronecker_input(use.x(), use.geometry, reduce=self.reduce, scale=scale)
            sums.output = Total(value if known is None else known + value)

    def _add_embedding_input(self, name: str, uses: Sequence[EmbeddingUse]) -> None:
        """Add the share of each token, in all positions of these uses or of a tied weight's."""
        sums, parameter = self.sums[name], self.parameters[name]
        assert sums.input_size is not None
        total = sums.input
        if total is None:
            total = parameter.new_zeros(sums.input_size, dtype=wide(parameter.dtype))
        sums.input = total
        if sums.kind is Tied and self.reduce:
            for use in uses:
                tokens, weight = token_indices(use), tokens_read(use).to(total.dtype)
                mean = total.new_zeros(len(tokens), total.shape[1])
                mean.scatter_add_(1, tokens, weight / tokens.shape[1])
                total[0] += mean.square_().sum(0) / sums.positions
            return
        tokens = torch.cat([token_indices(use) for use in uses], 1)
        read = torch.cat([tokens_read(use) for use in uses], 1)
        weight = read.to(total.dtype) / (sums.positions or tokens.shape[1])
        if self.reduce:
            mean = total.new_zeros(len(tokens), total.shape[1]).scatter_add_(1, tokens, weight)
            total += mean.T @ mean
        else:
            total[0].index_add_(0, tokens.flatten(), weight.flatten())

    def _add_output(self, name: str, s: Tensor, geometry: Geometry, given: Tensor) -> None:
        """Add B of columns [V, N, O, *out] ([V, N, T, O] for Linear), a view of ``given``."""
        sums = self.sums[name]
        if self.reduce and name in self._several and sums.kind is not Tied:
            sums.pending.append(features_last(s, geometry).sum(2))
            return
        view = features_last(s, geometry)
        if not self._is_served(sums, given, view):
            count = s.shape[1]
            # Once, if the columns are the same for all samples.
            once = count > 1 and s.stride(1) == 0
            own, scale = (s[:, :1], float(count)) if once else (s, 1.0)
            value = ops.kronecker_output(own, geometry, reduce=self.reduce, scale=scale)
            self._latest = Latest(given, view, value, [sums])

    def _is_served(self, sums: Sums, given: Tensor, view: Tensor) -> bool:
        """Whether the latest factor is of these columns; if not, it is complete and added."""
        if self._latest is not None and self._latest.serves(sums, given, view):
            self._latest.sums.append(sums)
            return True
        self._add_latest()
        return False

    def _add_latest(self) -> None:
        if self._latest is not None:
            self._latest.add()
            self._latest = None

    def _add_block(self, sums: Sums, g: Tensor) -> None:
        flat = g.flatten(0, 1)
        if sums.output is None:
            sums.output = Total((flat.T @ flat).unsqueeze(0))
        else:
            sums.output.value[0].addmm_(flat.T, flat)


class Block:
    """The kind of parameters that have an exact block."""


class Tied:
    """The kind of tables [V, D] that are an embedding and the weight of a Linear layer to V."""


def _kind(
    name: str, shares: Collection[Share], uses: ParameterUses, parameter: Tensor
) -> type | None:
    """The kind of a parameter in this batch; None if it is not used."""
    if name in uses.products:
        raise Refused(
            f"{name} has no Kronecker factors: {uses.products[name]} makes a weight out of it. "
            "diag, blocks and full work, or leave it out with params="
        )
    kinds = {_kind_of(share) for share in shares}
    if name in uses.others:
        kinds.add(Block)
    if len(kinds) <= 1:
        return kinds.pop() if kinds else None
    if kinds <= {ScaleUse, Block}:
        return Block
    if kinds == {WeightUse, EmbeddingUse} and all(_is_table(one, parameter) for one in shares):
        return Tied
    words = {
        WeightUse: "a weight",
        EmbeddingUse: "an embedding",
        ScaleUse: "a bias",
        Block: "a scale or in an op without a rule",
    }
    raise Refused(_tied(name, "as " + " and as ".join(sorted(words[kind] for kind in kinds))))


def _kind_of(share: Share) -> type:
    use = share.use
    if isinstance(use, WeightUse):
        return WeightUse
    if isinstance(use, EmbeddingUse):
        # The rows of an embedding of a view are not those of the parameter.
        return Block if share.chain else EmbeddingUse
    return ScaleUse if isinstance(use, ScaleUse) and use.factor is None else Block


def _is_table(share: Share, parameter: Tensor) -> bool:
    """Whether rows of the parameter are looked up, or are those of a Linear layer's weight."""
    use = share.use
    if isinstance(use, EmbeddingUse):
        return True
    if not isinstance(use, WeightUse) or not use.geometry.is_linear or parameter.dim() != 2:
        return False
    return matrix_shape(use)[1:] == parameter.shape and matrix_entries(share, parameter) is None


def _tied(name: str, how: str) -> str:
    return (
        f"{name} has no Kronecker factors: it is used several times, {how}. diag, blocks and full "
        "work, or leave it out with params="
    )


def _check_size(name: str, rows: int, parameter: Tensor, instead: str) -> None:
    size = rows * rows * wide(parameter.dtype).itemsize
    if size > LIMIT:
        raise Refused(
            f"{name} would need a factor [{rows}, {rows}] of {size / 2**30:.1f} GiB, more than "
            f"{LIMIT / 2**30:.0f} GiB; use {instead}"
        )


def _added(total: Tensor | None, value: Tensor) -> Tensor:
    """The sum, which shares no memory with the value."""
    return value.clone() if total is None else total.add_(value)


def _strides(x: Tensor) -> list[tuple[int, int]]:
    """Sizes and strides of the dimensions with more than one entry."""
    return [pair if pair[0] > 1 else (1, 0) for pair in zip(x.shape, x.stride(), strict=True)]
