"""Registration of ops with torch: dispatch, fake, accumulating form and gradient by one call.

An op computes one tensor. It is registered twice: ``lapkernels::name`` returns it, and
``lapkernels::name_`` writes ``out <- decay * out + scale * value`` into a buffer. Its compiled
kernels have that second form alone, so accumulation never needs a temporary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lapkernels.kernels import compiled, current_backend

_library = torch.library.Library("lapkernels", "DEF")


@dataclass(frozen=True)
class Op:
    """A registered op: its name, its specification in pure torch, and what it returns."""

    name: str
    reference: Callable[..., Tensor]
    shape: Callable[..., Sequence[int]]
    run: Callable[[Sequence[Tensor], tuple[Any, ...]], Tensor]
    run_into: Callable[[Sequence[Tensor], tuple[Any, ...], Tensor, float, float], None]

    def __call__(
        self, *arguments: Any, out: Tensor | None = None, decay: float = 1.0, scale: float = 1.0
    ) -> Tensor:
        """The op's value, or ``out`` after ``out <- decay * out + scale * value``."""
        tensors = _tensors(arguments)
        if out is None:
            if _in_transform():
                value = self.reference(*arguments)
            elif _is_plain(tensors):
                value = self.run(tensors, arguments)
            else:
                value = getattr(torch.ops.lapkernels, self.name)(*arguments)
            return value if scale == 1.0 else value * scale
        check_out(out, self.shape(*arguments), tensors[0])
        if _in_transform():
            accumulate(out, self.reference(*arguments), decay, scale)
        elif _is_plain([out, *tensors]):
            self.run_into(tensors, arguments, out, decay, scale)
        else:
            getattr(torch.ops.lapkernels, self.name + "_")(out, decay, scale, *arguments)
        return out


@dataclass(frozen=True)
class ListUpdate:
    """A registered op that changes a list of tensors in place."""

    name: str
    reference: Callable[..., None]

    def __call__(self, *arguments: Any) -> None:
        run = self.reference if _in_transform() else getattr(torch.ops.lapkernels, self.name)
        run(*arguments)


OPS: dict[str, Op | ListUpdate] = {}


def register(
    name: str,
    arguments: str,
    *,
    reference: Callable[..., Tensor],
    shape: Callable[..., Sequence[int]],
    backward: Callable[..., Any] | None = None,
    library: Callable[..., Tensor | None] | None = None,
) -> Op:
    """Register ``lapkernels::name(arguments) -> Tensor`` and its accumulating form ``name_``.

    ``reference(*arguments)`` is the specification, ``shape(*arguments)`` its result's shape.
    ``backward(grad, *arguments, needs=...)`` returns one gradient (or None) an argument; without it
    gradients come from differentiating the reference, exact at the reference's cost in memory.
    ``library(*arguments)`` is the value by torch's matrix products or convolutions for arguments
    where those are faster than a kernel of ours, and None for all others.
    """

    def kernel_or_value(
        tensors: Sequence[Tensor], values: tuple[Any, ...]
    ) -> Callable[..., None] | Tensor:
        for tensor in tensors:
            if tensor.numel() == 0:
                return reference(*values)
        if library is not None and current_backend() == "auto":
            value = library(*values)
            if value is not None:
                return value
        return compiled(name, *tensors) or reference(*values)

    def run(tensors: Sequence[Tensor], values: tuple[Any, ...]) -> Tensor:
        kernel = kernel_or_value(tensors, values)
        if isinstance(kernel, Tensor):
            return kernel.contiguous()
        out = tensors[0].new_empty(shape(*values))
        kernel(out, 0.0, 1.0, *values)
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
        lambda *values: run(_tensors(values), values),
        lambda *values: _tensors(values)[0].new_empty(shape(*values)),
    )
    _define(
        f"{name}_(Tensor(a!) out, float decay, float scale, {arguments}) -> ()",
        lambda out, decay, scale, *values: run_into(_tensors(values), values, out, decay, scale),
        _nothing,
    )
    torch.library.register_autograd(
        f"lapkernels::{name}",
        _saved_backward(reference, backward or _reference_backward(reference)),
        setup_context=_save,
        lib=_library,
    )
    OPS[name] = op = Op(name, reference, shape, run, run_into)
    return op


def register_list_update(
    name: str, arguments: str, *, reference: Callable[..., None]
) -> ListUpdate:
    """Register ``lapkernels::name(arguments) -> ()``, which changes its first list in place."""
    op = ListUpdate(name, reference)
    OPS[name] = op

    def run(*values: Any) -> None:
        (compiled(name, *_tensors(values)) or reference)(*values)

    _define(f"{name}({arguments}) -> ()", run, _nothing)
    return op


def _define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"lapkernels::{name}", fake, lib=_library)


def _nothing(*values: Any) -> None:
    """The fake of an op that returns nothing."""


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep every argument: tensors through autograd's own saving, the rest as they are."""
    ctx.save_for_backward(*_tensors(inputs))
    ctx.layout = [
        len(value) if _is_tensor_list(value) else isinstance(value, Tensor) for value in inputs
    ]
    ctx.plain = [None if _tensors([value]) else value for value in inputs]


def _saved_backward(
    reference: Callable[..., Tensor], backward: Callable[..., Any]
) -> Callable[..., Any]:
    twice = _reference_backward(reference)

    def run(ctx: Any, grad: Tensor) -> Any:
        saved = iter(ctx.saved_tensors)
        values = []
        for count, value in zip(ctx.layout, ctx.plain, strict=True):
            if count is True:
                values.append(next(saved))
            elif count is False:
                values.append(value)
            else:
                values.append([next(saved) for _ in range(count)])
        # Grad mode is on in a backward pass that is to be differentiated itself.
        lists = any(_is_tensor_list(value) for value in values)
        chosen = twice if torch.is_grad_enabled() and not lists else backward
        return chosen(grad, *values, needs=ctx.needs_input_grad)

    return run


def _reference_backward(reference: Callable[..., Tensor]) -> Callable[..., Any]:
    def run(grad: Tensor, *values: Any, needs: Sequence[bool]) -> tuple[Tensor | None, ...]:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            fresh = list(values)
            for index, needed in enumerate(needs):
                if needed:
                    value = values[index]
                    fresh[index] = (
                        value.view_as(value) if again else value.detach().requires_grad_()
                    )
            wanted = [value for value, needed in zip(fresh, needs, strict=True) if needed]
            value = reference(*fresh)
            found = torch.autograd.grad(value, wanted, grad, create_graph=again, allow_unused=True)
        gradients = iter(found)
        return tuple(next(gradients) if needed else None for needed in needs)

    return run


def _in_transform() -> bool:
    """Whether torch.func or forward-mode differentiation is at work, which the kernels do not know.

    Both would lose a tangent without a word; the reference is made of ops that know them.
    """
    if torch.compiler.is_compiling():
        return False
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def _is_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether torch's dispatcher has nothing to add: no gradient, no tracing, no subclass.

    Going through it costs tens of microseconds, more than a small op itself.
    """
    if torch.compiler.is_compiling():
        return False
    wants_grad = torch.is_grad_enabled()
    return all(
        type(tensor) in (Tensor, torch.nn.Parameter) and not (wants_grad and tensor.requires_grad)
        for tensor in tensors
    )


def _is_tensor_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], Tensor)


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """All tensors among the values, those in lists included."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif _is_tensor_list(value):
            found.extend(value)
    return found


def accumulate(out: Tensor, value: Tensor, decay: float, scale: float) -> Tensor:
    """Set ``out <- decay * out + scale * value``; with no decay ``out`` is not read."""
    if decay == 0.0:
        return out.copy_(value * scale)
    return out.mul_(decay).add_(value, alpha=scale)


def check_out(out: Tensor, shape: Sequence[int], like: Tensor) -> None:
    """Raise unless a user's buffer has this shape, and the dtype and device of ``like``."""
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"out has shape {tuple(out.shape)}: {tuple(shape)} is needed")
    if out.dtype != like.dtype or out.device != like.device:
        raise ValueError(
            f"out is {out.dtype} on {out.device}: {like.dtype} on {like.device} is needed"
        )
