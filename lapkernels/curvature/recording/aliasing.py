"""Which tensors of a forward pass share memory, for ops that write in place."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from lapkernels.rules import Kept


class Memory:
    """The tensors and kept tensors in each piece of memory. Nothing is looked up before a write."""

    def __init__(self) -> None:
        self._members: dict[int, list[Tensor]] = {}
        self._wholes: dict[int, Tensor] = {}
        self._kept: dict[int, list[Kept]] = {}
        self._new_members: list[Tensor] = []
        self._new_kept: list[tuple[Kept, Tensor]] = []

    def add(self, tensor: Tensor) -> None:
        """Note a tensor."""
        self._new_members.append(tensor)

    def keep(self, tensor: Tensor) -> Kept:
        """Note a tensor that a rule needs as it is now."""
        kept = Kept(tensor.detach())
        self._new_kept.append((kept, tensor))
        return kept

    @property
    def kept_count(self) -> int:
        """How many tensors were noted by ``keep`` since the last write."""
        return len(self._new_kept)

    def kept_since(self, count: int) -> list[tuple[Kept, Tensor]]:
        """What ``keep`` made of which tensor, without the first ``count``."""
        return self._new_kept[count:]

    def save(self, written: Tensor) -> None:
        """Copy what rules need before its memory is overwritten."""
        self._sort()
        for kept in self._kept.pop(storage_of(written), []):
            kept.tensor = kept.tensor.clone()

    def whole(self, tensor: Tensor) -> Tensor | None:
        """The tensor that is all of the memory a tensor lies in, in row-major order."""
        self._sort()
        return self._wholes.get(storage_of(tensor))

    def others(self, tensor: Tensor) -> Iterable[Tensor]:
        """The other tensors in the memory of a tensor."""
        self._sort()
        return [other for other in self._members[storage_of(tensor)] if other is not tensor]

    def _sort(self) -> None:
        for tensor in self._new_members:
            storage = storage_of(tensor)
            self._members.setdefault(storage, []).append(tensor)
            if storage not in self._wholes and _covers(tensor):
                self._wholes[storage] = tensor
        for kept, _ in self._new_kept:
            self._kept.setdefault(storage_of(kept.tensor), []).append(kept)
        self._new_members.clear()
        self._new_kept.clear()


def version_of(tensor: Tensor) -> int:
    """Changes with every write; those made in inference mode count none."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def storage_of(tensor: Tensor) -> int:
    """Which storage a tensor lies in. An address would not tell: all empty ones have the same."""
    return tensor.untyped_storage()._cdata


def _covers(tensor: Tensor) -> bool:
    size = tensor.untyped_storage().nbytes()
    return size > 0 and tensor.is_contiguous() and tensor.numel() * tensor.element_size() == size
