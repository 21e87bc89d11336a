"""An all-reduce over several processes, of results that merge, or of an error.

Results go up a binary tree of processes, each merging its children's into its own, and the sum
comes back down. If one process raises, all do. A process that dies breaks its connection, which is
an error like any other.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
# Instead of a group: all processes, if torch.distributed is initialised.
ALL = "all"
given_group: ContextVar[Any] = ContextVar("processes", default=ALL)


class use_processes:
    """Set which processes work together: from the call on or, as a context manager, for its block.

    ``None`` makes every process work on its own, with no communication; a group of
    ``torch.distributed`` makes its members work together; ``"all"``, the default, all processes if
    ``torch.distributed`` is initialised. It holds for the calling thread.
    """

    def __init__(self, group: Any) -> None:
        if isinstance(group, str) and group != ALL:
            raise ValueError(f"use_processes({group!r}): None, 'all' or a process group is needed")
        self._token = given_group.set(group)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        given_group.reset(self._token)


@dataclass
class Message:
    """Merged results of some processes in a call of ``what``, or their errors by rank.

    ``notes`` has what each rank adds for the others to check; ``wrong`` is an error of them all.
    """

    what: str
    state: Any = None
    failures: dict[int, str] = field(default_factory=dict)
    notes: dict[int, Any] = field(default_factory=dict)
    wrong: str | None = None

    def add(self, other: Message) -> None:
        """Merge a child's message."""
        self.failures.update(other.failures)
        self.notes.update(other.notes)
        self.wrong = self.wrong or other.wrong
        if self.wrong or self.failures:
            self.state = None
        elif self.what != other.what:
            self.wrong = f"processes are in different calls: {self.what} and {other.what}"
        else:
            try:
                self.state = merged(self.state, other.state)
            except Exception as error:
                self.wrong = str(error)


@dataclass(frozen=True)
class Processes:
    """This process, ``rank``, among ``size``."""

    group: dist.ProcessGroup | None
    rank: int
    size: int

    def everywhere(
        self,
        what: str,
        make: Callable[[], T | None],
        note: Callable[[], Any] | None = None,
        check: Callable[[dict[int, Any]], str | None] | None = None,
    ) -> T | None:
        """The merged results of all processes, on all of them; None is an empty result.

        If ``make`` raises on one process, or what they make does not add up, all raise. ``note`` is
        called behind it, and what the notes of all ranks say is wrong, says ``check``.
        """
        if self.size == 1:
            return make()
        own, caught = Message(what), None
        try:
            with use_processes(None):
                own.state = make()
                if note is not None:
                    own.notes[self.rank] = note()
        except Exception as error:
            caught = error
            own.failures[self.rank] = f"{type(error).__name__}: {error}"
        for child in self._children():
            own.add(self._receive(child, what))
        if self.rank:
            self._send(own, self._parent())
            own = self._receive(self._parent(), what)
        elif check is not None and not own.failures:
            own.wrong = own.wrong or check(own.notes)
        for child in self._children():
            self._send(own, child)
        if caught is not None:
            raise caught
        for rank, text in own.failures.items():
            raise RuntimeError(f"{what} failed on the process of rank {rank}: {text}")
        if own.wrong:
            raise ValueError(own.wrong)
        return cast("T | None", own.state)

    def first(self, what: str, value: T) -> T:
        """The value of rank 0, on all processes."""
        found = self.everywhere(what, lambda: None if self.rank else value)
        return value if found is None else found

    def _children(self) -> Iterator[int]:
        """Ranks r + 1, r + 2, r + 4, ..: as many as the number of zeros that r ends with."""
        step = 1
        while self.rank % (2 * step) == 0 and self.rank + step < self.size:
            yield self.rank + step
            step *= 2

    def _parent(self) -> int:
        return self.rank & (self.rank - 1)

    @property
    def _device(self) -> torch.device:
        """The device of tensors that are sent."""
        on_gpu = dist.get_backend(self.group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def _send(self, message: Message, to: int) -> None:
        """Send, ignoring a process that cannot be reached: its connection fails too."""
        try:
            packed, tensors = _packed(message)
        except Exception as error:
            packed, tensors = _packed(Message(message.what, failures={self.rank: str(error)}))
        try:
            dist.send_object_list([packed], group=self.group, group_dst=to, device=self._device)
            for tensor in tensors:
                if tensor.numel():
                    sent = tensor.detach().to(self._device).contiguous()
                    dist.send(sent, group=self.group, group_dst=to)
        except RuntimeError:
            return

    def _receive(self, other: int, what: str) -> Message:
        try:
            packed: list[Any] = [None]
            dist.recv_object_list(packed, group=self.group, group_src=other, device=self._device)
            return _unpacked(packed[0], lambda kind: self._tensor(kind, other))
        except RuntimeError as error:
            return Message(what, failures={other: f"the connection broke ({error})"})

    def _tensor(self, kind: Kind, other: int) -> Tensor:
        shape, stride, dtype, device = kind
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        if tensor.numel():
            dist.recv(tensor, group=self.group, group_src=other)
        return torch.empty_strided(shape, stride, dtype=dtype, device=device).copy_(tensor)


def merged(a: Any, b: Any) -> Any:
    """The sum of tensors, numbers or dicts of them, or their ``merge``."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, dict):
        return {**a, **{key: merged(a.get(key), value) for key, value in b.items()}}
    return a + b if isinstance(a, Tensor | int | float) else a.merge(b)


# Shape, strides, dtype and kind of device.
Kind = tuple[torch.Size, tuple[int, ...], torch.dtype, str]


def _packed(message: Message) -> tuple[bytes, list[Tensor]]:
    """A message without its tensors, and the tensors."""
    tensors: list[Tensor] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Kind | None:
            if not isinstance(obj, Tensor):
                return None
            tensors.append(obj)
            stride = torch.empty_like(obj, device="meta").stride()
            return obj.shape, stride, obj.dtype, obj.device.type

    file = io.BytesIO()
    Pickler(file).dump(message)
    return file.getvalue(), tensors


def _unpacked(packed: bytes, tensor: Callable[[Kind], Tensor]) -> Message:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Kind) -> Tensor:
            return tensor(pid)

    return Unpickler(io.BytesIO(packed)).load()
