"""What torch runs for one sample: every op below autograd, with its arguments and a dense J."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.curvature import oracle

# Ops that take the shape of their argument only.
CREATORS = ("empty_like", "zeros_like", "ones_like", "full_like", "new_")


# Ops whose J is diagonal: one gradient of the sum tells it.
ELEMENTWISE = ("tanh", "tanh_", "sigmoid", "sigmoid_", "relu", "relu_", "softplus", "silu", "clone")


@dataclass(eq=False)
class Value:
    """A tensor of the pass: `varies` with the sample, `active` if it depends on parameters."""

    numel: int
    varies: bool
    active: bool
    columns: dict[int, Tensor] = field(default_factory=dict)
    m: Tensor | None = None

    def add(self, columns: Mapping[int, Tensor], m: Tensor | None) -> None:
        for origin, s in columns.items():
            known = self.columns.get(origin)
            self.columns[origin] = s if known is None else known + s
        if m is not None:
            self.m = m if self.m is None else self.m + m

    def settle(self, threshold: float, origins: Iterator[int]) -> None:
        """Switch between columns and diagonal, after all uses have been added."""
        if not self.varies:
            return
        if self.numel > threshold:
            for s in self.columns.values():
                self.add({}, s.square().sum(0))
            self.columns = {}
        elif self.m is not None:
            self.columns[next(origins)] = self.m.sqrt().diag()
            self.m = None


@dataclass(eq=False)
class Op:
    """One call: `function` of arguments, some of which are copies of values."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[Value]
    outputs: list[Value]
    known: dict[tuple[bool, ...], list[list[Tensor]]] = field(default_factory=dict)

    def jacobians(self, reached: Sequence[bool]) -> list[list[Tensor]]:
        """J [d_out, d_in] of each output that is reached, by each input."""
        key = tuple(reached)
        if key not in self.known:
            self.known[key] = self._jacobians(key)
        return self.known[key]

    def _jacobians(self, reached: Sequence[bool]) -> list[list[Tensor]]:
        leaves = {value: torch.empty(0) for value in self.inputs}

        def put(entry: Any) -> Any:
            if isinstance(entry, _Copy):
                if entry.value not in leaves:
                    return entry.tensor.clone()
                if not leaves[entry.value].numel():
                    leaves[entry.value] = entry.tensor.clone().requires_grad_()
                # A clone of the leaf: the op may write to it.
                return leaves[entry.value].clone()
            if isinstance(entry, list | tuple):
                return type(entry)(put(one) for one in entry)
            return entry

        with torch.enable_grad():
            kwargs = {name: put(entry) for name, entry in self.kwargs.items()}
            found = _tensors(self.function(*put(self.args), **kwargs))
        if getattr(self.function, "__name__", "").split(".")[0] in ELEMENTWISE:
            (leaf,) = leaves.values()
            (slope,) = torch.autograd.grad(found[0].sum(), leaf)
            return [[slope.flatten().diag()]]
        return [
            [j.reshape(len(j), -1) for j in oracle.jacobian(out, list(leaves.values()))]
            if wanted
            else []
            for out, wanted in zip(found, reached, strict=True)
        ]


@dataclass(eq=False)
class _Copy:
    tensor: Tensor
    value: Value


def argument(op: Op, place: int, value: Value) -> Tensor | None:
    """The argument at a place, if it is this value."""
    entry = op.args[place] if place < len(op.args) else None
    return entry.tensor if isinstance(entry, _Copy) and entry.value is value else None


class Recording(TorchDispatchMode):
    """Keeps every op that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []
        # Tensors live on, so that an identity stays one tensor's.
        self._values: dict[int, tuple[Value, Tensor]] = {}
        # Views whose memory was written since, and the tensor that fills each memory.
        self._stale: set[int] = set()
        self._wholes: dict[int, Tensor] = {}

    def define(self, tensor: Tensor, value: Value) -> None:
        self._values[id(tensor)] = (value, tensor)
        self._stale.discard(id(tensor))
        storage = tensor.untyped_storage()
        if tensor.is_contiguous() and tensor.nbytes == storage.nbytes():
            self._wholes.setdefault(storage.data_ptr(), tensor)

    def value(self, tensor: Tensor) -> Value:
        if id(tensor) in self._stale:
            whole = self._wholes[tensor.untyped_storage().data_ptr()]
            self._note(_read, (self._copied(whole), _entries(tensor, whole)), {}, [tensor])
        elif id(tensor) not in self._values:
            self.define(tensor, Value(tensor.numel(), False, False))
        return self._values[id(tensor)][0]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        kept = self._copied(args), {name: self._copied(entry) for name, entry in kwargs.items()}
        found = func(*args, **kwargs)
        if func._schema.name.endswith("_"):
            self._note(func, *kept, [args[0]])
            self._wrote(args[0])
        else:
            self._note(func, *kept, _tensors(found))
        return found

    def _wrote(self, part: Tensor) -> None:
        """Other tensors in the same memory have changed with it."""
        address = part.untyped_storage().data_ptr()
        self._stale |= {
            key
            for key, (_, other) in self._values.items()
            if other is not part and other.untyped_storage().data_ptr() == address
        }
        whole = self._wholes.get(address)
        if whole is not None and whole is not part:
            before = _Copy(whole.detach().clone(), self._values[id(whole)][0])
            args = (before, self._copied(part), _entries(part, whole))
            self._note(_written, args, {}, [whole])

    def _copied(self, entry: Any) -> Any:
        if isinstance(entry, Tensor):
            return _Copy(entry.detach().clone(), self.value(entry))
        if isinstance(entry, list | tuple):
            return type(entry)(self._copied(one) for one in entry)
        return entry

    def _note(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Tensor]
    ) -> None:
        values = list(dict.fromkeys(copy.value for copy in _copies([args, list(kwargs.values())])))
        if getattr(function, "__name__", "").startswith(CREATORS):
            values = []
        varies = any(value.varies for value in values)
        active = torch.is_grad_enabled() and any(value.active for value in values)
        results: list[Value] = []
        for out in outputs:
            results.append(Value(out.numel(), varies, active and out.is_floating_point()))
            self.define(out, results[-1])
        if active:
            inputs = [value for value in values if value.active]
            self.ops.append(Op(function, args, kwargs, inputs, results))


def _entries(part: Tensor, whole: Tensor) -> list[list[int]]:
    """The shape of a part, and which entries of the whole it is."""
    entries = torch.arange(whole.numel()).as_strided(
        part.shape, part.stride(), part.storage_offset()
    )
    return [list(part.shape), entries.flatten().tolist()]


def _read(whole: Tensor, entries: list[list[int]]) -> Tensor:
    return whole.flatten()[entries[1]].reshape(entries[0])


def _written(whole: Tensor, part: Tensor, entries: list[list[int]]) -> Tensor:
    index = torch.tensor(entries[1], dtype=torch.int64)
    return whole.flatten().scatter(0, index, part.flatten()).reshape(whole.shape)


def _copies(entry: Any) -> list[_Copy]:
    if isinstance(entry, _Copy):
        return [entry]
    return [c for one in entry for c in _copies(one)] if isinstance(entry, list | tuple) else []


def _tensors(entry: Any) -> list[Tensor]:
    if isinstance(entry, Tensor):
        return [entry]
    return [t for one in entry for t in _tensors(one)] if isinstance(entry, list | tuple) else []


@dataclass(frozen=True)
class Recorded:
    """One sample's ops, its parameters by name, and its output as value and as tensor."""

    ops: list[Op]
    parameters: dict[str, Value]
    value: Value
    f: Tensor

    def start(self) -> Value:
        """Forget what an earlier walk left; the value that a new one starts from."""
        for one in [*self.parameters.values(), *(out for op in self.ops for out in op.outputs)]:
            one.columns, one.m = {}, None
        return self.value


def record(model: nn.Module, sample: oracle.Inputs, output: oracle.Select | None) -> Recorded:
    """What torch runs for one sample."""
    recording = Recording()
    inputs = sample.values() if isinstance(sample, dict) else sample
    for tensor in _tensors(sample if isinstance(sample, Tensor) else list(inputs)):
        recording.define(tensor, Value(tensor.numel(), True, False))
    parameters: dict[str, Value] = {}
    for name, parameter in oracle.trainable(model).items():
        parameters[name] = Value(parameter.numel(), False, True)
        recording.define(parameter, parameters[name])
    with recording:
        f = oracle.call(model, sample, output)
        value = recording.value(f)
    return Recorded(recording.ops, parameters, value, f.detach())


def recorded(
    model: nn.Module, x: oracle.Inputs, output: oracle.Select | None = None
) -> list[Recorded]:
    """Every sample of a batch, in float64."""
    model = oracle.in_double(model)
    return [record(model, sample, output) for sample in oracle.samples(x)]
