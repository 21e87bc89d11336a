"""Checking the backward pass of a recorded pass against autograd.

The first time that a program is seen, a random cotangent of at most two samples is pulled back to
every parameter, by our pass and by autograd on the model. A program is what was recorded: ops,
modules, rules and their connections, and the chosen parameters, without shapes. Where rules and
autograd differ, a difference quotient in float64 decides which of them is right.

Columns are compared where they reach each parameter. Windows, compressed columns, diagonals and
Kronecker factors are not checked here.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lapkernels.curvature.backward.carry import autograd_columns
from lapkernels.curvature.backward.columns import Collector, pull_columns
from lapkernels.curvature.data.batches import Batch, mapped, selector
from lapkernels.curvature.data.random_state import random_state_kept
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.recording.aliasing import storage_of, version_of
from lapkernels.curvature.recording.graph import Graph, Share
from lapkernels.curvature.recording.run import record
from lapkernels.curvature.recording.run_model import Subject, copied, plain_ops
from lapkernels.kernels import use_backend
from lapkernels.ops.base.precision import HALF, widened

# Tolerance in units of the last place of a parameter's largest entry, and of the largest entry of
# all parameters: the gradient of a bias before a norm is zero up to rounding.
OWN_UNITS, ALL_UNITS = 1e4, 1e3
# In half precision, where these would allow for anything: autograd rounds at every op.
HALF_UNITS = 32.0, 8.0
SAMPLES = 2

_enabled: ContextVar[bool] = ContextVar("self_check", default=True)
_verdicts: WeakKeyDictionary[nn.Module, dict[Any, Verdict]] = WeakKeyDictionary()


@contextmanager
def unchecked() -> Iterator[None]:
    """Inside, new recorded passes are not checked against autograd."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check: ``problem`` says why the pass cannot be used, or is None."""

    note: str
    problem: str | None = None


def verdict(subject: Subject, batch: Batch, graph: Graph, by_autograd: bool) -> Verdict:
    """Check a recorded pass, once for each program of a model."""
    known = graph.memo.get("verdict") if _enabled.get() else None
    if known is None:
        programs = _verdicts.setdefault(subject.model, {})
        key = _program(graph, by_autograd)
        if graph.trace.pooled and ("alone", key) not in programs:
            _check_samples_alone(subject, batch, graph)
            programs["alone", key] = Verdict("each sample has the same output alone")
        if not _enabled.get():
            return Verdict("not checked: switched off")
        if key not in programs:
            programs[key] = _Check(subject, batch, graph, by_autograd).verdict()
        known = graph.memo["verdict"] = programs[key]
    return known


def _check_samples_alone(subject: Subject, batch: Batch, graph: Graph) -> None:
    """Raise unless each sample has the same output without the others."""
    together = graph.trace.prediction
    if type(together) is not Tensor:
        return
    eps = max(torch.finfo(kind).eps for kind in graph.trace.dtypes)
    for n in range(batch.count):
        part = batch.part(n, 1)
        with _undisturbed(subject, part), torch.no_grad():
            result = subject.runner(copied(part.args), copied(part.kwargs), {})
            check_alone(selector(subject.output, 1)(result), together[n : n + 1], eps)


def check_alone(alone: Tensor, together: Tensor, eps: float) -> None:
    """Raise unless outputs of some samples are the same without the rest of their batch."""
    if not close(alone, together, eps):
        raise Refused(
            "the model's output for a sample changes with the other samples of the batch; "
            "curvature is a sum over independent samples"
        )


def program_name(graph: Graph, by_autograd: bool) -> str:
    """The same on all processes that run the same ops."""
    return hashlib.sha256(repr(_program(graph, by_autograd)).encode()).hexdigest()


def _program(graph: Graph, by_autograd: bool) -> tuple[Any, ...]:
    """Everything about a recorded pass but shapes and numbers."""
    trace, numbers = graph.trace, dict[int, int]()
    rows = []
    for node in trace.nodes:
        read = [numbers.setdefault(id(value), len(numbers)) for value in node.inputs]
        made = [numbers.setdefault(id(value), len(numbers)) for value in node.outputs]
        rows.append((node.name, node.path, type(node.rule), *read, -1, *made))
    alone = trace.count == 1
    return by_autograd, alone, trace.hidden, *trace.parameters, *rows


class _Check:
    """One comparison of a pass with autograd."""

    def __init__(self, subject: Subject, batch: Batch, graph: Graph, by_autograd: bool) -> None:
        self.subject, self.batch = subject, batch
        self.graph, self.by_autograd = graph, by_autograd
        self.part = batch.part(0, min(SAMPLES, batch.count))
        kinds = graph.trace.dtypes
        self.eps = max(torch.finfo(kind).eps for kind in kinds)
        self.units = HALF_UNITS if kinds.intersection(HALF) else (OWN_UNITS, ALL_UNITS)

    def _bounds(self, wanted: Mapping[str, Tensor]) -> dict[str, float]:
        """The rounding error allowed for each gradient; unbounded where numbers overflow."""
        sizes = {name: float(value.abs().max()) for name, value in wanted.items() if value.numel()}
        largest, (own, every) = max(sizes.values(), default=0.0), self.units
        return {name: self.eps * (own * size + every * largest) for name, size in sizes.items()}

    def verdict(self) -> Verdict:
        """Compare with autograd, and decide."""
        if type(self.graph.trace.prediction) is not Tensor:
            return Verdict("not checked: tensors without values")
        if not bool(self.graph.trace.prediction.isfinite().all()):
            return Verdict("not checked: the model's output is not finite")
        try:
            f, wanted = self._by_autograd()
        except RuntimeError as error:
            if self.by_autograd:
                raise Refused(f"autograd finds no gradient of this model: {error}") from error
            return Verdict(f"not checked: autograd raises {error}")
        check_alone(f, self.graph.trace.prediction[: len(f)], self.eps)
        bounds = self._bounds(wanted)
        try:
            left = self._left(self._recorded(), wanted)
        except Refused:
            raise
        except Exception as error:
            return Verdict("", f"the backward pass raises {type(error).__name__}: {error}")
        wrong = [name for name, bound in bounds.items() if float(left[name].abs().max()) > bound]
        samples = f"sample{'s 0 and 1' if len(f) > 1 else ' 0'}"
        if not wrong:
            return Verdict(f"gradients of {samples} agree with autograd")
        doubtful = wrong
        # On the autograd route a difference means that part of the gradient was missed.
        if not self.by_autograd:
            with suppress(Exception):  # Not every model runs in float64.
                _, wanted = self._by_autograd()
                doubtful = [name for name in wrong if not self._ours_is_right(name, left, wanted)]
        if doubtful:
            return Verdict("", f"the gradient of {', '.join(doubtful)} is not autograd's")
        warnings.warn(
            f"autograd's own gradient of {', '.join(wrong)} is not the derivative of the model, as "
            "difference quotients show, and the curvature is of the derivative",
            RuntimeWarning,
            stacklevel=2,
        )
        return Verdict(f"difference quotients of {samples} agree, autograd does not")

    def _cotangent(self, f: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(f.shape, generator=generator, dtype=torch.float64, device="cpu").to(f)

    def _by_autograd(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs of some samples, and the gradient of each chosen parameter at the cotangent."""
        subject, part = self.subject, self.part
        frozen = {
            name: parameter.detach().requires_grad_()
            for name, parameter in subject.chosen.items()
            if not parameter.requires_grad
        }
        with _undisturbed(subject, part), torch.enable_grad():
            result = subject.runner(copied(part.args), copied(part.kwargs), frozen)
            f = selector(self.subject.output, part.count)(result)
            f = widened(f)
        leaves = [frozen.get(name, parameter) for name, parameter in subject.chosen.items()]
        found: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if f.requires_grad:
            found = torch.autograd.grad(f, leaves, self._cotangent(f), allow_unused=True)
        gradients: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, leaf, grad in zip(subject.chosen, leaves, found, strict=True):
            own = widened(torch.zeros_like(leaf) if grad is None else grad.to_dense())
            # Autograd may return one tensor for two parameters, or an expanded number.
            if own.numel() > 1 and 0 in own.stride() or storage_of(own) in seen:
                own = own.clone(memory_format=torch.contiguous_format)
            seen.add(storage_of(own))
            gradients[name] = own
        return f.detach(), gradients

    def _recorded(self) -> Graph:
        """A pass over torch's own functions: of some samples alone if it is the same program."""
        for batch in (self.part, self.batch):
            by_autograd = self.by_autograd
            if by_autograd and not self.graph.trace.nodes:
                return self.graph
            with _undisturbed(self.subject, batch), use_backend("reference"):
                trace = record(self.subject, batch, edges=by_autograd, keep_graph=by_autograd)
            graph = Graph.of(trace)
            if _program(graph, by_autograd) == _program(self.graph, by_autograd):
                break
        return graph

    def _left(self, graph: Graph, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
        """Autograd's gradients minus those of the pass, in place."""
        f = graph.trace.prediction
        columns = torch.zeros_like(f).unsqueeze(0)
        columns[0, : self.part.count] = self._cotangent(f[: self.part.count])
        collector = _Left(wanted, self.part.count)
        carry = autograd_columns if self.by_autograd else pull_columns
        carry(graph, columns, collector)
        return collector.left

    def _ours_is_right(
        self, name: str, left: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
    ) -> bool:
        """Whether our gradient is the derivative along a random direction, in float64."""
        parameter = self.subject.parameters[name]
        direction = torch.randn(
            parameter.shape, generator=torch.Generator().manual_seed(1), device="cpu",
            dtype=torch.float64,
        ).to(parameter.device)  # fmt: skip
        step = 1e-6 * max(1.0, float(parameter.detach().abs().max()))
        plus, minus = (self._value_at(name, sign * step * direction) for sign in (1, -1))
        quotient = (plus - minus) / (2 * step)
        ours = float((direction * (wanted[name] - left[name]).double()).sum())
        largest = max(float(value.abs().max()) for value in wanted.values() if value.numel())
        own, every = self.units
        slack = max(own * self.eps, 1e-6) * abs(quotient)
        return abs(ours - quotient) <= slack + every * self.eps * largest * direction.numel() ** 0.5

    def _value_at(self, name: str, step: Tensor) -> float:
        """The output times the cotangent, in float64, with a parameter moved by a step."""
        contents, part = self.subject.contents, self.part
        values = {
            key: _double(parameter.detach()) for key, parameter in contents.parameters.items()
        }
        values.update((key, _double(buffer)) for key, buffer in contents.model.named_buffers())
        values[name] = values[name] + step
        with _undisturbed(self.subject, part), torch.no_grad():
            inputs = (mapped(_double, copied(part.args)), mapped(_double, copied(part.kwargs)))
            f = selector(self.subject.output, part.count)(self.subject.runner(*inputs, values))
        return float((f.double() * self._cotangent(f)).sum())


class _Left(Collector):
    """Gradients minus those of the first samples."""

    def __init__(self, left: dict[str, Tensor], count: int) -> None:
        self.left, self.count = left, count

    def share(self, share: Share, s: Tensor) -> None:
        self.left[share.name] -= share.to_parameter(share.use.jacobian_sum(s, slice(self.count)))

    def jacobian(self, name: str, g: Tensor, rows: slice) -> None:
        self.left[name] -= g.sum((0, 1))


def close(a: Tensor, b: Tensor, eps: float | None = None) -> bool:
    """Whether two predictions are the same up to rounding."""
    scale = float(b.abs().max()) if b.numel() else 0.0
    eps = torch.finfo(b.dtype).eps if eps is None else eps
    a, b = widened(a), widened(b)
    return bool(torch.allclose(a, b, rtol=0, atol=min(1e4 * eps, 0.25) * scale, equal_nan=True))


@contextmanager
def _undisturbed(subject: Subject, batch: Batch) -> Iterator[None]:
    """Run the model once more, and restore random state and buffers."""
    buffers = [(buffer, version_of(buffer), buffer.clone()) for buffer in subject.contents.buffers]
    try:
        with (
            random_state_kept(subject.model, batch.args, batch.kwargs),
            plain_ops(subject.contents),
        ):
            yield
    finally:
        for buffer, version, before in buffers:
            if version_of(buffer) != version:
                buffer.copy_(before)


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x
