"""Recording a forward pass: every op the model runs, with its rule.

The model runs as it is, with gradients enabled, and is watched below autograd: whatever Python does
in its forward, the ops that torch executes are seen, with the very tensors. In-place ops are
recorded as the new value they make; a tensor that a rule still needs is copied just before it is
overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

# Documented in "Extending PyTorch" under this very name.
from torch.utils._python_dispatch import TorchDispatchMode

from lapkernels.curvature.errors import Refused, SamplesLost
from lapkernels.curvature.memory import Memory
from lapkernels.curvature.trace import Node, Value
from lapkernels.rules import (
    Call,
    LocalGradient,
    MixesSamples,
    Operand,
    Rule,
    Samples,
    ScaleUse,
    Unsupported,
    builder_of,
    follow,
)
from lapkernels.rules.lift import Lift, expanded_samples
from lapkernels.rules.memory import PartRead, PartWrite, Region


class Recorder(TorchDispatchMode):
    """Sees every op below autograd and builds its rule."""

    def __init__(self, count: int, place_fresh: bool, edges: bool) -> None:
        super().__init__()
        self.count = count
        self.nodes: list[Node] = []
        self.opaque: list[str] = []
        self.hidden = False
        self.path = ""
        self.entries = 0
        self._place_fresh = place_fresh
        self._edges = edges
        self._pending: list[tuple[Node, list[Tensor]]] = []
        # Tensors stay alive while recording, so that an identity means one tensor only.
        self._values: dict[int, tuple[Value, Tensor]] = {}
        self._memory = Memory()
        # Views whose memory was written by another tensor since they were made.
        self._stale: set[int] = set()

    def define(self, tensor: Tensor, value: Value) -> Value:
        """Say what a tensor is."""
        self._values[id(tensor)] = (value, tensor)
        if self._stale:
            self._stale.discard(id(tensor))
        self._memory.add(tensor)
        return value

    def value(self, tensor: Tensor) -> Value:
        """What a tensor is; one never seen before is a constant."""
        if id(tensor) in self._stale:
            return self._read(tensor)
        known = self._values.get(id(tensor))
        return known[0] if known else self.define(tensor, Value(tensor.shape, None, False))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self._pending:
            self.settle()
        name, writes, random = _described(func)
        if random:
            raise Refused(f"{name} in {self.where} makes the output random; call model.eval()")
        tensors = tensors_of(args)
        if kwargs:
            tensors += tensors_of(tuple(kwargs.values()))
        grad = torch.is_grad_enabled()
        values = [self.operand(tensor) for tensor in tensors]
        if name == "aten::detach":
            out = func(*args)
            self.define(out, Value(out.shape, values[0].samples, False))
            return out
        if not grad:
            self.hidden |= any(value.active and value.samples is None for value in values)
        if writes:
            return self._write(name, func, args, dict(kwargs or {}), tensors, values)
        out = func(*args, **(kwargs or {}))
        if name.startswith("aten::new_"):
            tensors, values = [], []
        self._record(name, func, args, dict(kwargs or {}), tensors, values, _outputs(out))
        return out

    def settle(self) -> None:
        """Note where autograd meets the results of the last op, before anything overwrites them."""
        for node, outputs in self._pending:
            node.edges = [get_gradient_edge(out) if out.requires_grad else None for out in outputs]
        self._pending.clear()

    def operand(self, tensor: Tensor) -> Value:
        """What a tensor that is read is, a result of a custom autograd.Function included."""
        value = self.value(tensor)
        if value.without_grad and tensor.requires_grad and torch.is_grad_enabled():
            # Its gradient is not what the ops inside say: a custom autograd.Function made it.
            self.opaque.append(f"{self.where} runs a custom autograd.Function")
            value.active, value.without_grad = True, False
        return value

    def _write(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        values: list[Value],
    ) -> Any:
        """An op that overwrites its first operand: a new value in an old tensor."""
        if not name.endswith("_") or "out" in kwargs:
            raise Refused(
                f"{self.where} runs {name}, which writes into a tensor it is given, as some "
                "modules do in training mode; call model.eval() first"
            )
        functional = name.removesuffix("_")
        written = tensors[0]
        self._memory.save(written)
        before = self._before(functional, tensors, values)
        func(*args, **kwargs)
        args = tuple(before.get(id(value), value) for value in args)
        tensors = [before.get(id(tensor), tensor) for tensor in tensors]
        whole = self._memory.whole(written)
        old = None if whole is None or whole is written else self.value(whole)
        self._record(functional, functional_of(func), args, kwargs, tensors, values, (written,))
        if old is not None:
            assert whole is not None
            region = Region.of(written, whole)
            part = self._values[id(written)][0]
            self._note("in-place write", PartWrite, [whole, written], [old, part], whole, region)
        others = self._memory.others(written)
        if whole is None and others:
            raise Refused(f"{name} in {self.where} writes a part of a non-contiguous tensor")
        self._stale.update(id(other) for other in others if other is not whole)
        return written

    def _before(self, name: str, tensors: list[Tensor], values: list[Value]) -> dict[int, Tensor]:
        """Copies of the operands that are about to be overwritten and that the rule reads."""
        if not any(value.active or value.samples is not None for value in values):
            return {}
        builder = builder_of(name)
        reads = builder is None or getattr(builder, "reads_input", True)
        memory = tensors[0].untyped_storage().data_ptr()
        return {
            id(tensor): tensor.detach().clone()
            for index, tensor in enumerate(tensors)
            if (index > 0 or reads) and tensor.untyped_storage().data_ptr() == memory
        }

    def _read(self, tensor: Tensor) -> Value:
        """What a view is after its memory was written."""
        whole = self._memory.whole(tensor)
        assert whole is not None
        region = Region.of(tensor, whole)
        self._note("read", PartRead, [whole], [self.value(whole)], tensor, region)
        return self._values[id(tensor)][0]

    def _note(
        self,
        name: str,
        build: Callable[..., Rule],
        tensors: list[Tensor],
        values: list[Value],
        out: Tensor,
        region: Region,
    ) -> None:
        """Record a movement inside one memory."""
        self._record(
            name, torch.clone, tuple(tensors), {"region": region}, tensors, values, (out,), build
        )

    def _record(
        self,
        name: str,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        values: list[Value],
        outputs: tuple[Tensor, ...],
        builder: Callable[..., Rule] | None = None,
    ) -> None:
        varies = any(value.samples is not None for value in values)
        active = torch.is_grad_enabled() and any(value.active for value in values)
        if not varies and not active:
            without_grad = not torch.is_grad_enabled()
            for out in outputs:
                samples = self._fresh(out, values)
                self.define(out, Value(out.shape, samples, False, without_grad=without_grad))
            return
        builder = builder or builder_of(name)
        if self._place_fresh and name == "aten::expand" and not varies:
            samples = expanded_samples(values[0].shape, outputs[0].shape, self.count)
            if samples is not None:
                builder, args, kwargs = Lift, args[:1], {"samples": samples}
        try:
            call, rule = self._rule(name, op, args, kwargs, tensors, values, outputs, builder)
        except SamplesLost:
            if self.count > 1:
                raise
            values = [
                self.lifted(tensor, value) for tensor, value in zip(tensors, values, strict=True)
            ]
            call, rule = self._rule(name, op, args, kwargs, tensors, values, outputs, builder)
        active = active and rule.differentiable
        without_grad = not torch.is_grad_enabled()
        results = []
        for out, samples in zip(outputs, rule.samples, strict=True):
            moves = active and out.is_floating_point()
            if active and out.is_complex():
                self.opaque.append(f"{self.where} computes with complex numbers")
                moves = True
            value = Value(out.shape, samples, moves, None, without_grad)
            results.append(self.define(out, value))
            self.entries += out.numel() if moves else 0
        if active:
            node = Node(name, self.path, values, results, rule)
            self.nodes.append(node)
            if self._edges and rule.uses:
                self._pending.append((node, list(outputs)))

    def _rule(
        self,
        name: str,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        values: list[Value],
        outputs: tuple[Tensor, ...],
        builder: Callable[..., Rule] | None,
    ) -> tuple[Call, Rule]:
        operands = [
            Operand(tensor, value.samples, value.active, self._memory.keep)
            for tensor, value in zip(tensors, values, strict=True)
        ]
        call = Call(name, op, operands, outputs, self._memory.keep, self.count, _same(values))
        rest = iter(operands)
        args = tuple(_wrap(value, rest) for value in args)
        kwargs = {key: _wrap(value, rest) for key, value in kwargs.items()}
        try:
            rule = self._built(call, args, kwargs, builder)
        except MixesSamples as error:
            short = name.removeprefix("aten::")
            raise SamplesLost(
                f"{short} in {self.where} cannot be followed sample by sample: {error}"
            ) from error
        self._account(call, rule)
        return call, rule

    def _built(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        builder: Callable[..., Rule] | None,
    ) -> Rule:
        if builder is not None:
            try:
                return builder(call, *args, **kwargs)
            except Unsupported:
                pass
        return LocalGradient(call, *args, **kwargs)

    def lifted(self, tensor: Tensor, value: Value) -> Value:
        """A weight as a value of the only sample, for ops that have no rule for the weight."""
        if not value.active or value.samples is not None or tensor.dim() == 0:
            return value
        samples = follow(1, tensor.shape)
        lifted = Value(tensor.shape, samples, True)
        keep = self._memory.keep
        operand = Operand(tensor, None, True, keep)
        call = Call("lift", torch.clone, [operand], (tensor,), keep, 1, [[0]])
        rule = Lift(call, operand, samples=samples)
        self.nodes.append(Node("lift", self.path, [value], [lifted], rule))
        return lifted

    def _account(self, call: Call, rule: Rule) -> None:
        """Every weight that meets samples must be a use, or its share would be lost."""
        weights = any(operand.is_weight for operand in call.operands)
        if not weights or all(samples is None for samples in rule.samples):
            return
        for index, operand in enumerate(call.operands):
            if not operand.is_weight:
                continue
            use = rule.uses.get(index)
            if use is None or (isinstance(use, ScaleUse) and use.has_samples(call.out.dim())):
                raise SamplesLost(
                    f"{call.name.removeprefix('aten::')} in {self.where} uses a parameter in its "
                    f"argument {index} in a way that has no rule"
                )

    def notice_hooks(self) -> None:
        """A hook on a tensor changes gradients in a way that only autograd knows."""
        if any(tensor._backward_hooks for _, tensor in self._values.values()):
            self.opaque.append("the model registers a hook on the gradient of a tensor")

    @property
    def where(self) -> str:
        """The module that runs, for messages."""
        return self.path or "the model"

    def _fresh(self, out: Tensor, values: list[Value]) -> Samples | None:
        """A constant made in the model, such as a first state, may have a row for each sample."""
        if not self._place_fresh or values or self.count not in out.shape:
            return None
        return Samples(self.count, list(out.shape).index(self.count))


@cache
def _described(func: Any) -> tuple[str, bool, bool]:
    """An op's name, whether it overwrites an argument, and whether it draws random numbers.

    Ops that have a rule judge by their arguments whether they are random.
    """
    name = func._schema.name
    bare = name.removesuffix("_")
    random = torch.Tag.nondeterministic_seeded in func.tags and builder_of(bare) is None
    # The noise that RReLU writes is not read again.
    writes = func._schema.is_mutable and name != "aten::rrelu_with_noise"
    return name, writes, random


def tensors_of(arguments: tuple[Any, ...] | list[Any]) -> list[Tensor]:
    """All tensors among arguments, in order."""
    found: list[Tensor] = []
    for value in arguments:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_of(value)
        elif isinstance(value, dict):
            found += tensors_of(tuple(value.values()))
    return found


def _wrap(value: Any, operands: Iterator[Operand]) -> Any:
    if isinstance(value, Tensor):
        return next(operands)
    if isinstance(value, (list, tuple)):
        return [_wrap(entry, operands) for entry in value]
    return value


def _outputs(out: Any) -> tuple[Tensor, ...]:
    if isinstance(out, Tensor):
        return (out,)
    if isinstance(out, (list, tuple)):
        return tuple(value for value in out if isinstance(value, Tensor))
    return ()


def _same(values: list[Value]) -> list[list[int]]:
    if len(values) == 1:
        return [[0]]
    groups: dict[int, list[int]] = {}
    for index, value in enumerate(values):
        groups.setdefault(id(value), []).append(index)
    return list(groups.values())


@cache
def functional_of(func: Any) -> Any:
    """The op that returns what an in-place op writes: torch's own if its arguments are the same."""
    bare = func._schema.name.removeprefix("aten::").removesuffix("_")
    packet = getattr(torch.ops.aten, bare, None)
    name = func._overloadname
    if packet is not None and name in packet.overloads():
        other = getattr(packet, name)
        if _arguments(other) == _arguments(func):
            return other
    return Functional(func)


def _arguments(func: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in func._schema.arguments]


class Functional:
    """An in-place op that leaves its argument alone and returns the new value."""

    def __init__(self, func: Any) -> None:
        self.func, self._schema = func, func._schema

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.func(x.clone(), *args, **kwargs)
