"""Gradients of registered ops: what is saved, and which backward runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def is_tensor_list(value: Any) -> bool:
    """Whether an argument is a list of tensors."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], Tensor)


def tensors_of(values: Sequence[Any]) -> list[Tensor]:
    """All tensors among the values, those in lists included."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif is_tensor_list(value):
            found.extend(value)
    return found


def save_arguments(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save every argument: tensors by ``save_for_backward``, all others on the context."""
    ctx.save_for_backward(*tensors_of(inputs))
    ctx.layout = [
        len(value) if is_tensor_list(value) else isinstance(value, Tensor) for value in inputs
    ]
    ctx.plain = [None if tensors_of([value]) else value for value in inputs]


def backward_of(
    reference: Callable[..., Tensor], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """The backward pass of an op; one to be differentiated itself goes by the reference."""
    twice = differentiated(reference)

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
        # Grad mode is on in a backward pass with create_graph.
        lists = any(is_tensor_list(value) for value in values)
        chosen = twice if torch.is_grad_enabled() and not lists else backward
        return chosen(grad, *values, needs=ctx.needs_input_grad)

    return run


def differentiated(reference: Callable[..., Tensor]) -> Callable[..., Any]:
    """A backward pass by autograd on the reference."""

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
