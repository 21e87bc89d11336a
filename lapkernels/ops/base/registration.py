"""Registration of ops with torch: dispatch, fake, accumulating form and gradient by one call.

An op computes one tensor. It is registered twice: ``lapkernels::name`` returns it, and
``lapkernels::name_`` writes ``out <- decay * out + scale * value`` into a buffer. Compiled kernels
have only the second form, so accumulation needs no temporary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lapkernels.kernels import compiled, current_backend, why_not
from lapkernels.ops.base.gradients import (
    backward_of,
    differentiated,
    save_arguments,
    tensors_of,
)

_library = torch.library.Library("lapkernels", "DEF")

# A value by torch's own products that is computed when called, or None where a kernel serves.
Computed = Callable[[], Tensor] | None


class Route(Enum):
    """DIRECT skips the dispatcher, which costs more than a small op itself."""

    DIRECT = "nothing to differentiate or trace"
    DISPATCHER = "autograd, tracing or a tensor subclass is at work"
    REFERENCE = "torch.func or forward mode is at work, which only plain torch ops know"


def route(tensors: Sequence[Tensor]) -> Route:
    """The route for a call on these tensors."""
    if torch.compiler.is_compiling():
        return Route.DISPATCHER
    wants_grad = torch.is_grad_enabled()
    # Level -1 is outside of forward mode, where no tensor has a tangent.
    has_tangents = getattr(forward_ad, "_current_level", 0) >= 0
    found = Route.DIRECT
    for tensor in tensors:
        kind = type(tensor)
        if kind is not Tensor and kind is not torch.nn.Parameter:
            return Route.DISPATCHER
        try:
            tensor.data_ptr()
        except RuntimeError:  # torch.func's wrappers have no memory of their own
            return Route.REFERENCE
        if has_tangents and forward_ad.unpack_dual(tensor).tangent is not None:
            return Route.REFERENCE
        if wants_grad and tensor.requires_grad:
            found = Route.DISPATCHER
    return found


def needs_graph(*tensors: Tensor | None) -> bool:
    """Whether autograd has to record a call on these tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def kernel_for(name: str, tensors: Sequence[Tensor]) -> Callable[..., Any] | None:
    """The compiled kernel for the CPU that may serve these tensors, if there is one."""
    if (
        current_backend() not in ("auto", "cpp")
        or why_not("cpp", name, tensors) is not None
        or route(tensors) is Route.REFERENCE
    ):
        return None
    for tensor in tensors:
        if tensor.numel() == 0:
            return None
    return compiled(name, tensors[0])


@dataclass(frozen=True)
class Op:
    """A registered op: its name, its specification in pure torch, and what it returns."""

    name: str
    reference: Callable[..., Tensor]
    shape: Callable[..., Sequence[int]]
    tensors: Callable[[Sequence[Any]], list[Tensor]]
    run: Callable[[Sequence[Tensor], tuple[Any, ...], float], Tensor]
    run_into: Callable[[Sequence[Tensor], tuple[Any, ...], Tensor, float, float], None]
    server: Callable[[Sequence[Tensor], tuple[Any, ...]], str]

    def served_by(self, *arguments: Any) -> str:
        """Who serves a call: a "kernel", "torch" by its own products, or the "reference"."""
        return self.server(self.tensors(arguments), arguments)

    def __call__(
        self, *arguments: Any, out: Tensor | None = None, decay: float = 1.0, scale: float = 1.0
    ) -> Tensor:
        """The op's value, or ``out`` after ``out <- decay * out + scale * value``."""
        tensors = self.tensors(arguments)
        device = "cpu" if tensors[0].is_cpu else tensors[0].device.type
        if torch.is_autocast_enabled(device):
            # Autocast would round the reference and torch's own products, but not the kernels.
            with torch.autocast(device, enabled=False):
                return self(*arguments, out=out, decay=decay, scale=scale)
        if out is None:
            taken = route(tensors)
            if taken is Route.DIRECT:
                return self.run(tensors, arguments, scale)
            if taken is Route.DISPATCHER:
                value = getattr(torch.ops.lapkernels, self.name)(*arguments)
            else:
                value = self.reference(*arguments)
            return value if scale == 1.0 else value * scale
        check_out(out, self.shape(*arguments), tensors[0])
        if torch.is_grad_enabled() and any(t.requires_grad for t in (out, *tensors)):
            raise RuntimeError(
                f"{self.name}: no gradient goes through out; leave it out and add the result, "
                "or call under torch.no_grad()"
            )
        taken = route([out, *tensors])
        if taken is Route.DIRECT:
            self.run_into(tensors, arguments, out, decay, scale)
        elif taken is Route.DISPATCHER:
            getattr(torch.ops.lapkernels, self.name + "_")(out, decay, scale, *arguments)
        else:
            accumulate(out, self.reference(*arguments), decay, scale)
        return out


@dataclass(frozen=True)
class ListUpdate:
    """A registered op that changes a list of tensors in place."""

    name: str
    reference: Callable[..., None]

    def __call__(self, *arguments: Any, like: Sequence[Tensor] | None = None) -> None:
        """Change the tensors. The backend is chosen by the list ``like``."""
        tensors = tensors_of(arguments) if like is None else like
        taken = route(tensors)
        if taken is Route.DIRECT:
            (compiled(self.name, *tensors) or self.reference)(*arguments)
        elif taken is Route.DISPATCHER:
            getattr(torch.ops.lapkernels, self.name)(*arguments)
        else:
            self.reference(*arguments)


OPS: dict[str, Op | ListUpdate] = {}


def register(
    name: str,
    arguments: str,
    *,
    reference: Callable[..., Tensor],
    shape: Callable[..., Sequence[int]],
    backward: Callable[..., Any] | None = None,
    library: Callable[..., Computed] | None = None,
) -> Op:
    """Register ``lapkernels::name(arguments) -> Tensor`` and its accumulating form ``name_``.

    ``reference(*arguments)`` is the specification, ``shape(*arguments)`` its result's shape.
    ``backward(grad, *arguments, needs=...)`` returns one gradient (or None) an argument; without it
    gradients come from differentiating the reference, exact at the reference's cost in memory.
    ``library(*arguments)`` computes the value by torch's matrix products or convolutions, once it
    is called; None for arguments where a kernel is faster.
    """

    tensors_in = tensor_finder(arguments)

    def kernel_or_value(
        tensors: Sequence[Tensor], values: tuple[Any, ...]
    ) -> Callable[..., None] | Tensor:
        for tensor in tensors:
            if tensor.numel() == 0:
                return reference(*values)
        if library is not None and current_backend() == "auto":
            compute = library(*values)
            if compute is not None:
                return compute()
        return compiled(name, *tensors) or reference(*values)

    def server(tensors: Sequence[Tensor], values: tuple[Any, ...]) -> str:
        if any(tensor.numel() == 0 for tensor in tensors) or route(tensors) is Route.REFERENCE:
            return "reference"
        if library is not None and current_backend() == "auto" and library(*values) is not None:
            return "torch"
        return "reference" if compiled(name, *tensors) is None else "kernel"

    def run(tensors: Sequence[Tensor], values: tuple[Any, ...], scale: float = 1.0) -> Tensor:
        kernel = kernel_or_value(tensors, values)
        if isinstance(kernel, Tensor):
            return kernel if scale == 1.0 else kernel * scale
        out = tensors[0].new_empty(shape(*values))
        kernel(out, 0.0, scale, *values)
        return out

    def run_into(
        tensors: Sequence[Tensor],
        values: tuple[Any, ...],
        out: Tensor,
        decay: float,
        scale: float,
    ) -> None:
        kernel = kernel_or_value(tensors, values)
        if isinstance(kernel, Tensor):
            accumulate(out, kernel, decay, scale)
        else:
            kernel(out, decay, scale, *values)

    _define(
        f"{name}({arguments}) -> Tensor",
        lambda *values: run(tensors_in(values), values).contiguous(),
        lambda *values: tensors_in(values)[0].new_empty(shape(*values)),
    )
    _define(
        f"{name}_(Tensor(a!) out, float decay, float scale, {arguments}) -> ()",
        lambda out, decay, scale, *values: run_into(tensors_in(values), values, out, decay, scale),
        _nothing,
    )
    torch.library.register_autograd(
        f"lapkernels::{name}",
        backward_of(reference, backward or differentiated(reference)),
        setup_context=save_arguments,
        lib=_library,
    )
    OPS[name] = op = Op(name, reference, shape, tensors_in, run, run_into, server)
    return op


def register_list_update(
    name: str, arguments: str, *, reference: Callable[..., None]
) -> ListUpdate:
    """Register ``lapkernels::name(arguments) -> ()``, which changes its first list in place."""
    op = ListUpdate(name, reference)
    OPS[name] = op

    def run(*values: Any) -> None:
        (compiled(name, *tensors_of(values)) or reference)(*values)

    _define(f"{name}({arguments}) -> ()", run, _nothing)
    return op


def _define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"lapkernels::{name}", fake, lib=_library)


def _nothing(*values: Any) -> None:
    """The fake of an op that returns nothing."""


def accumulate(out: Tensor, value: Tensor, decay: float, scale: float) -> Tensor:
    """Set ``out <- decay * out + scale * value``; with no decay ``out`` is not read."""
    if decay == 0.0:
        return out.copy_(value * scale)
    if decay != 1.0:
        out.mul_(decay)
    return out.add_(value, alpha=scale)


def tensor_finder(arguments: str) -> Callable[[Sequence[Any]], list[Tensor]]:
    """``tensors_of`` specialised to the arguments of one schema."""
    kinds = [argument.split()[0] for argument in arguments.split(", ")]
    if "Tensor[]" in kinds:
        return tensors_of
    indices = [index for index, kind in enumerate(kinds) if kind.startswith("Tensor")]
    return lambda values: [values[index] for index in indices if values[index] is not None]


def check_out(out: Tensor, shape: Sequence[int], like: Tensor) -> None:
    """Raise unless a user's buffer has this shape, and the dtype and device of ``like``."""
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"out has shape {tuple(out.shape)}: {tuple(shape)} is needed")
    if out.dtype != like.dtype or out.device != like.device:
        raise ValueError(
            f"out is {out.dtype} on {out.device}: {like.dtype} on {like.device} is needed"
        )
