"""Dense blocks over several parameters: products of all their Jacobians, a few samples at a time.

M = sum_{n,v} G_{n,v} G_{n,v}ᵀ,    G_{n,v} [P] the column v of sample n at all parameters of M.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from lapkernels.curvature.errors import Refused
from lapkernels.curvature.passes.passes import Pass
from lapkernels.curvature.quantities.loop import ColumnSum
from lapkernels.curvature.recording.graph import Share
from lapkernels.ops.base.chunks import row_chunks
from lapkernels.ops.base.precision import wide

# Bytes of a result, unless the caller allows more.
LIMIT = 2 << 30


class JointJacobians(ColumnSum):
    """Keeps a step of columns at each parameter until all parameters have it."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = parameters
        self._shares: dict[str, tuple[Share, Tensor]] = {}
        self._explicit: dict[str, list[Tensor]] = {}

    def begin(self, one: Pass) -> Pass:
        """The pass with no more columns at a time than can be kept."""
        graph = one.graph
        sizes = [self.parameters[name].numel() for name in graph.explicit]
        return one.keeping(graph.trace.entries + one.count * sum(sizes))

    def share(self, share: Share, s: Tensor) -> None:
        self._shares[share.name] = (share, s)

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        self._explicit.setdefault(name, []).append(g.reshape(*g.shape[:2], -1))

    def clear(self) -> None:
        """Forget the step."""
        self._shares.clear()
        self._explicit.clear()

    def together(
        self, names: Sequence[str], entries: Mapping[str, Tensor] | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Some samples at a time, and G [V, n, P] of these parameters in their order.

        ``entries`` selects flat entries of each parameter; all if it is None.
        """
        explicit = {
            name: torch.cat(self._explicit[name], 1) for name in names if name in self._explicit
        }
        shares = {name: self._shares[name] for name in names if name in self._shares}
        sizes = [(g.shape[0], g.shape[1]) for g in explicit.values()]
        sizes += [(s.shape[0], share.use.count) for share, s in shares.values()]
        if not sizes:
            return
        columns, count = sizes[0]
        total = sum(self.parameters[name].numel() for name in names)
        for rows in row_chunks(count, columns * total):
            parts = []
            for name in names:
                if name in shares:
                    share, s = shares[name]
                    part = share.jacobian(s, rows)
                elif name in explicit:
                    part = explicit[name][:, rows]
                else:
                    shape = (columns, len(range(count)[rows]), self.parameters[name].numel())
                    own = self.parameters[name]
                    part = own.new_zeros(shape, dtype=wide(own.dtype))
                parts.append(part if entries is None else part[..., entries[name]])
            yield rows, torch.cat(parts, 2)


class JointBlocks(JointJacobians):
    """One dense matrix for each list of parameters, in their order, or of some ``entries``."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        groups: Mapping[str, Sequence[str]],
        limit: int = LIMIT,
        entries: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(parameters)
        self.groups, self.entries = groups, entries
        self.matrices: dict[str, Tensor] = {}
        count = {
            name: p.numel() if entries is None else len(entries[name])
            for name, p in parameters.items()
        }
        sizes = {k: sum(count[name] for name in names) for k, names in groups.items()}
        first = next(iter(parameters.values()))
        total = sum(size * size for size in sizes.values()) * wide(first.dtype).itemsize
        key = max(sizes, key=sizes.__getitem__)
        check_limit(total, limit, f"{key or 'the model'} with [{sizes[key]}, {sizes[key]}]")
        for key, names in groups.items():
            shape, dtype = (sizes[key], sizes[key]), wide(parameters[names[0]].dtype)
            self.matrices[key] = parameters[names[0]].new_zeros(shape, dtype=dtype)

    @property
    def positions(self) -> dict[str, Tensor]:
        """The entries of a block's rows: all of its parameters, concatenated."""
        return {key: torch.arange(len(m), device=m.device) for key, m in self.matrices.items()}

    def finish(self) -> None:
        for key, names in self.groups.items():
            for _, part in self.together(names, self.entries):
                g = part.flatten(0, 1)
                self.matrices[key].addmm_(g.T, g)
        self.clear()


def check_limit(size: int, limit: int, largest: str) -> None:
    """Raise if a result of ``size`` bytes is larger than allowed."""
    if size > limit:
        raise Refused(
            f"the result would take {_readable(size)}, more than limit={_readable(limit)}; its "
            f"largest part is {largest}. Smaller blocks, fewer parameters (params=), diag or kron "
            "take less"
        )


def _readable(size: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024  # pyright: ignore[reportAssignmentType]
    return f"{size:.4g} TiB"
