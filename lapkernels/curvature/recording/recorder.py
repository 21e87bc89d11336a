"""Recording a forward pass: every op the model runs, with its rule.

The model runs unchanged, with gradients enabled, under a dispatch mode below autograd that sees
every op with its tensors. In-place ops are recorded as out-of-place ones; a tensor that a rule
saved is copied just before it is overwritten.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

# Documented in "Extending PyTorch" under this very name.
from torch.utils._python_dispatch import TorchDispatchMode

from lapkernels.curvature.errors import Refused, SamplesLost, reference
from lapkernels.curvature.recording.aliasing import Memory, storage_of
from lapkernels.curvature.recording.operators import functional_of, operator_of, tensors_of, wrapped
from lapkernels.curvature.recording.placing import Placing
from lapkernels.curvature.recording.trace import Node, Value
from lapkernels.rules import (
    Call,
    LocalGradient,
    MixesSamples,
    Operand,
    RandomResult,
    Rule,
    Samples,
    ScaleUse,
    Unsupported,
    builder_of,
    follow,
)
from lapkernels.rules.base.lift import Lift, expanded_samples
from lapkernels.rules.memory import PartRead, PartWrite, Region


class Recorder(TorchDispatchMode):
    """Sees every op below autograd and builds its rule."""

    def __init__(
        self, count: int, paths: Mapping[int, str], place_fresh: bool, edges: bool
    ) -> None:
        super().__init__()
        self.count = count
        self.nodes: list[Node] = []
        self.opaque: list[str] = []
        self.hidden = False
        self.has_written = False
        self.has_met_unknown = False
        # Whether a constant was made of all samples, such as whether a mask is true everywhere.
        self.pooled = False
        self._detached = False
        # Whether some functions run outside of the mode, whose saved tensors are unknown.
        self.partial = False
        self._paths = paths
        self.entries = 0
        self._place_fresh = place_fresh
        self._edges = edges
        self._pending: list[tuple[Node, list[Tensor]]] = []
        # Tensors stay alive while recording, so that an id means one tensor.
        self.values: dict[int, tuple[Value, Tensor]] = {}
        self.memory = Memory()
        self._placing = Placing(self.nodes, self.memory, edges)
        # Chosen parameters by their storage.
        self._owners: dict[int, str] = {}
        # Views whose memory was written through another tensor after they were made.
        self._stale: set[int] = set()

    def define(self, tensor: Tensor, value: Value) -> Value:
        """Associate a tensor with a value."""
        self.values[id(tensor)] = (value, tensor)
        if self._stale:
            self._stale.discard(id(tensor))
        self.memory.add(tensor)
        if value.parameter is not None:
            self._owners[storage_of(tensor)] = value.parameter
        return value

    def value(self, tensor: Tensor) -> Value:
        """The value of a tensor; an unknown one is a constant, unless autograd made it."""
        if self._stale and id(tensor) in self._stale:
            return self._read(tensor)
        known = self.values.get(id(tensor))
        if known:
            return known[0]
        made = tensor.grad_fn is not None and torch.is_grad_enabled()
        if torch.is_grad_enabled() and (tensor.requires_grad or isinstance(tensor, nn.Parameter)):
            owner = self._owners.get(storage_of(tensor))
            if owner is not None and not (made and self.partial):
                raise Refused(reference(self.where, owner))
        if made:
            self.opaque.append(f"{self.where} reads a tensor that autograd saved")
            self.hidden = self.has_met_unknown = True
        return self.define(tensor, Value(tensor.shape, tensor.dtype, None, made))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self._pending:
            self.settle()
        op, kwargs = operator_of(func), kwargs or {}
        if op.random:
            raise Refused(f"{op.name} in {self.where} makes the output random; call model.eval()")
        if op.detaches:
            value, out = self.operand(args[0]), func(*args)
            self._detached |= value.active and value.samples is None
            reached = value.active or value.reached
            self.define(
                out, Value(out.shape, out.dtype, value.samples, False, None, True, None, reached)
            )
            return out
        tensors = tensors_of(args)
        if kwargs:
            tensors += tensors_of(kwargs.values())
        values = self.operands(tensors)
        if op.writes:
            return self._write(op.name, func, args, kwargs, tensors, values)
        out = func(*args, **kwargs)
        if op.fresh:
            tensors, values = [], []
        self.record(op.name, func, args, kwargs, tensors, values, _outputs(out))
        return out

    def settle(self) -> None:
        """Keep autograd's edges to the results of the last op, before anything overwrites them."""
        for node, outputs in self._pending:
            node.edges = [get_gradient_edge(out) if out.requires_grad else None for out in outputs]
        self._pending.clear()

    def operands(self, tensors: list[Tensor]) -> list[Value]:
        """The values of the tensors that an op reads."""
        values = [self.operand(tensor) for tensor in tensors]
        if not torch.is_grad_enabled():
            self.hidden |= any(value.active and value.samples is None for value in values)
        return values

    def operand(self, tensor: Tensor) -> Value:
        """The value of a tensor that is read, also of one whose gradient only autograd knows.

        Such a tensor comes from a custom autograd.Function or a scripted function, or autograd
        saved it for a backward pass inside the model.
        """
        value = self.value(tensor)
        if value.without_grad and tensor.grad_fn is not None and torch.is_grad_enabled():
            self.opaque.append(
                f"{self.where} runs a custom autograd.Function, a scripted function, or autograd "
                "inside"
            )
            value.active, value.without_grad = True, False
            # Which of the detached weights it depends on is unknown.
            self.hidden |= self._detached
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
        """An op that overwrites its first operand, which gets a new value."""
        if not name.endswith("_") or "out" in kwargs:
            raise Refused(
                f"{self.where} runs {name}, which writes into a tensor it is given, as some "
                "modules do in training mode; call model.eval() first"
            )
        written = tensors[0]
        owner = self._owners.get(storage_of(written))
        if owner is not None:
            raise Refused(
                f"{self.where} writes to the parameter {owner} in its forward pass; do that before "
                "the call, and not in the model"
            )
        self.has_written = True
        self._placing.note_write(written)
        self._check_written(written, values)
        functional = name.removesuffix("_")
        self.memory.save(written)
        before = self._before(functional, tensors, values)
        func(*args, **kwargs)
        args = tuple(before.get(id(value), value) for value in args)
        tensors = [before.get(id(tensor), tensor) for tensor in tensors]
        whole = self.memory.whole(written)
        old = None if whole is None or whole is written else self.value(whole)
        self.record(functional, functional_of(func), args, kwargs, tensors, values, (written,))
        if old is not None:
            assert whole is not None
            region = Region.of(written, whole)
            part = self.values[id(written)][0]
            self._note("in-place write", PartWrite, [whole, written], [old, part], whole, region)
        others = self.memory.others(written)
        if whole is None and others:
            raise Refused(f"{name} in {self.where} writes a part of a non-contiguous tensor")
        self._stale.update(id(other) for other in others if other is not whole)
        return written

    def _check_written(self, written: Tensor, values: list[Value]) -> None:
        """Mark writes that autograd does not see, or attributes to another tensor."""
        if not torch.is_grad_enabled():
            return
        known = [self.values[id(one)][0] for one in (*self.memory.others(written), written)]
        # Of the views older than a write to their base, only this one is up to date.
        seen = written.requires_grad or written.grad_fn is not None
        if not seen and any(value.active for value in known):
            self.opaque.append(f"{self.where} writes to a tensor by its detached view")
        weights = any(value.active and value.samples is None for value in values)
        if self._edges and weights and self.memory.whole(written) is not written:
            self.opaque.append(f"{self.where} writes to a view")
            self.hidden = True

    def _before(self, name: str, tensors: list[Tensor], values: list[Value]) -> dict[int, Tensor]:
        """Copies of the operands that the rule reads and the op overwrites."""
        if not any(value.active or value.samples is not None for value in values):
            return {}
        builder = builder_of(name)
        reads = builder is None or getattr(builder, "reads_input", True)
        memory = storage_of(tensors[0])
        return {
            id(tensor): tensor.detach().clone()
            for index, tensor in enumerate(tensors)
            if (index > 0 or reads) and storage_of(tensor) == memory
        }

    def _read(self, tensor: Tensor) -> Value:
        """The value of a view after its memory was written."""
        whole = self.memory.whole(tensor)
        assert whole is not None
        region = Region.of(tensor, whole)
        self._note("read", PartRead, [whole], [self.value(whole)], tensor, region)
        return self.values[id(tensor)][0]

    def _note(
        self,
        name: str,
        build: Callable[..., Rule],
        tensors: list[Tensor],
        values: list[Value],
        out: Tensor,
        region: Region,
    ) -> None:
        """Record a copy within one storage."""
        self.record(
            name, torch.clone, tuple(tensors), {"region": region}, tensors, values, (out,), build
        )

    def record(
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
        """Record an op that has run, with its rule."""
        for out in outputs:
            if out.layout is not torch.strided or out.is_nested:
                raise Refused(
                    f"{name.removeprefix('aten::')} in {self.where} makes a sparse or nested "
                    "tensor, which has no rules: use dense ones"
                )
        grad = torch.is_grad_enabled()
        varies = active = seen = reached = False
        lost = None
        for value in values:
            varies |= value.samples is not None
            active |= value.active and grad
            reached |= value.active or value.reached
            seen |= value.active and not value.without_grad
            lost = lost or value.lost
        # A result may still have a gradient that only autograd knows.
        without_grad = not grad or not (seen or any([tensor.requires_grad for tensor in tensors]))
        if lost is not None:
            self._lose(lost, op, outputs)
            return
        if not varies and not active:
            for out in outputs:
                samples = self._fresh(out, values)
                value = Value(
                    out.shape, out.dtype, samples, False, None, without_grad, None, reached
                )
                self.define(out, value)
            return
        if active and any([tensor.is_complex() for tensor in (*tensors, *outputs)]):
            self.opaque.append(f"{self.where} computes with complex numbers")
            if any([value.active and value.samples is None for value in values]):
                self.hidden = True
                raise SamplesLost(f"{self.where} computes with complex parameters")
        builder = builder or builder_of(name)
        if self._place_fresh and name == "aten::expand" and not varies:
            samples = expanded_samples(values[0].shape, outputs[0].shape, self.count)
            if samples is not None:
                builder, args, kwargs = Lift, args[:1], {"samples": samples}
        try:
            rule = self._rule(name, op, tensors, outputs, values, builder, args, kwargs)
        except SamplesLost as error:
            if self.count > 1:
                self._lose(error, op, outputs)
                return
            values = [
                self.lifted(tensor, value) for tensor, value in zip(tensors, values, strict=True)
            ]
            rule = self._rule(name, op, tensors, outputs, values, builder, args, kwargs)
        active = active and rule.differentiable
        self.pooled |= varies and any([samples is None for samples in rule.samples])
        results = []
        for out, samples in zip(outputs, rule.samples, strict=True):
            moves = active and (out.is_floating_point() or out.is_complex())
            value = Value(out.shape, out.dtype, samples, moves, None, without_grad, None, reached)
            value.period = rule.period
            results.append(self.define(out, value))
            # Ops that use a weight compute something new.
            if moves and (rule.uses or not _is_view(out, tensors)):
                self.entries += out.numel()
        if active:
            node = Node(name, self.path, values, results, rule)
            self.nodes.append(node)
            if not varies:
                rule_of = partial(self._rule, name, op, tensors, outputs)
                self._placing.add(node, tensors, outputs, rule_of, (builder, args, kwargs))
            if self._edges and rule.uses:
                self._pending.append((node, list(outputs)))

    def _lose(self, error: SamplesLost, op: Any, outputs: tuple[Tensor, ...]) -> None:
        """The samples of this value are lost, which matters if the output or the model reads it."""
        tags = getattr(op, "tags", ())
        shapes_vary = torch.Tag.dynamic_output_shape in tags
        if not outputs or shapes_vary or torch.Tag.data_dependent_output in tags:
            raise error
        for out in outputs:
            self.define(out, Value(out.shape, out.dtype, None, False, lost=error))

    def _rule(
        self,
        name: str,
        op: Any,
        tensors: list[Tensor],
        outputs: tuple[Tensor, ...],
        values: list[Value],
        builder: Callable[..., Rule] | None,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Rule:
        keep = self.memory.keep
        operands = [
            Operand(tensor, value.samples, value.active, keep, value.active or value.reached)
            for tensor, value in zip(tensors, values, strict=True)
        ]
        call = Call(name, op, operands, outputs, keep, self.count, _same(values))
        rest = iter(operands)
        given = wrapped(args, rest)
        named = dict(zip(kwargs, wrapped(kwargs.values(), rest), strict=True)) if kwargs else kwargs
        short = name.removeprefix("aten::")
        try:
            rule = self._built(call, given, named, builder)
        except RandomResult as error:
            raise Refused(f"{short} in {self.where} {error}") from error
        except MixesSamples as error:
            if self.count > 1 and self._placing.place_any(values, self.count):
                return self._rule(name, op, tensors, outputs, values, builder, args, kwargs)
            raise SamplesLost(
                f"{short} in {self.where} cannot be followed sample by sample: {error}"
            ) from error
        weights = any(value.active and value.samples is None for value in values)
        if weights and rule.differentiable:
            if self._has_placed(call, rule, values):
                return self._rule(name, op, tensors, outputs, values, builder, args, kwargs)
            self._account(call, rule)
        return rule

    def _built(
        self,
        call: Call,
        args: list[Any],
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
        """A weight as a value of one sample, for ops that have no rule for the weight."""
        if not value.active or value.samples is not None or tensor.dim() == 0:
            return value
        samples = follow(1, tensor.shape)
        lifted = Value(tensor.shape, tensor.dtype, samples, True)
        keep = self.memory.keep
        operand = Operand(tensor, None, True, keep, True)
        call = Call("lift", torch.clone, [operand], (tensor,), keep, 1, [[0]])
        rule = Lift(call, operand, samples=samples)
        self.nodes.append(Node("lift", self.path, [value], [lifted], rule))
        return lifted

    def _account(self, call: Call, rule: Rule) -> None:
        """Every weight that meets samples must be a use, or its share would be lost."""
        if all(samples is None for samples in rule.samples):
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

    def _has_placed(self, call: Call, rule: Rule, values: list[Value]) -> bool:
        """Whether a weight that has an entry for each sample got its samples placed."""
        rank, placed = call.out.dim(), False
        for index, use in rule.uses.items():
            if not isinstance(use, ScaleUse) or use.along is not None:
                continue
            value, where = values[index], use.samples
            if self.count == 1:
                placed |= self._placing.place(value, follow(1, value.shape))
            elif use.has_samples(rank):
                where = where.at(where.dim - (rank - len(value.shape)))
                placed |= self._placing.place(value, where)
        return placed

    def notice_hooks(self) -> None:
        """Mark a hook on a tensor: only autograd knows how it changes gradients."""
        if any(tensor._backward_hooks for _, tensor in self.values.values()):
            self.opaque.append("the model registers a hook on the gradient of a tensor")

    @property
    def path(self) -> str:
        """Name of the running module: the innermost one with a method on the stack."""
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            # Reading a frame's locals is slow, and the library's frames hold none of the modules.
            if code.co_varnames[:1] == ("self",) and not _is_ours(code.co_filename):
                name = self._paths.get(id(frame.f_locals.get("self")))
                if name is not None:
                    return name
            frame = frame.f_back
        return ""

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
def _is_ours(filename: str) -> bool:

    return Path(__file__).parents[1] in Path(filename).parents


def _is_view(out: Tensor, tensors: list[Tensor]) -> bool:
    """Whether a result shares the memory of an operand."""
    storage = storage_of(out)
    return any(storage_of(tensor) == storage for tensor in tensors)


def _outputs(out: Any) -> tuple[Tensor, ...]:
    if isinstance(out, Tensor):
        return (out,)
    if isinstance(out, (list, tuple)):
        return tuple(value for value in out if isinstance(value, Tensor))
    return ()


def _same(values: list[Value]) -> list[list[int]]:
    if len(values) == 1 or len(set(map(id, values))) == len(values):
        return [[index] for index in range(len(values))]
    groups: dict[int, list[int]] = {}
    for index, value in enumerate(values):
        groups.setdefault(id(value), []).append(index)
    return list(groups.values())
