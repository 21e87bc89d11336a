"""Which tensors of a forward pass share memory, for ops that write in place."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from lapkernels.rules import Kept


class Memory:
    """The tensors and saved tensors of each storage. Nothing is looked up before a write."""

    def __init__(self) -> None:
        self._members: dict[int, list[Tensor]] = {}
        self._wholes: dict[int, Tensor] = {}
        self._kept: dict[int, list[Kept]] = {}
        self._new_members: list[Tensor] = []
        self._new_kept: list[tuple[Kept, Tensor]] = []

    def add(self, tensor: Tensor) -> None:
        """Register a tensor."""
        self._new_members.append(tensor)

    def keep(self, tensor: Tensor) -> Kept:
        """Register a tensor that a rule saves: it needs the present values."""
        kept = Kept(tensor.detach())
        self._new_kept.append((kept, tensor))
        return kept

    @property
    def kept_count(self) -> int:
        """The number of tensors registered by ``keep`` since the last write."""
        return len(self._new_kept)

    def kept_since(self, count: int) -> list[tuple[Kept, Tensor]]:
        """Tensors and what ``keep`` returned for them, without the first ``count``."""
        return self._new_kept[count:]

    def save(self, written: Tensor) -> None:
        """Copy saved tensors before their memory is overwritten."""
        self._sort()
        for kept in self._kept.pop(storage_of(written), []):
            kept.stored = kept.stored.clone()

    def whole(self, tensor: Tensor) -> Tensor | None:
        """The whole storage of a tensor as one tensor, in row-major order."""
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
    """The version counter, which every write raises; tensors of inference mode have none."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def storage_of(tensor: Tensor) -> int:
    """The identity of a tensor's storage: not its address, which all empty ones share."""
    return tensor.untyped_storage()._cdata


def _covers(tensor: Tensor) -> bool:
    size = tensor.untyped_storage().nbytes()
    return size > 0 and tensor.is_contiguous() and tensor.numel() * tensor.element_size() == size
