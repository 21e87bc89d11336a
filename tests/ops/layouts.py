"""The same numbers in other places of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SENTINEL = 123456.0


@dataclass(frozen=True)
class Buffer:
    """A view into a larger block; the block's other entries hold a sentinel."""

    block: Tensor
    view: Tensor

    def assert_untouched_outside(self) -> None:
        inside = torch.zeros_like(self.block, dtype=torch.bool)
        inside.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset())[...] = 1
        assert bool((self.block[~inside] == SENTINEL).all()), "wrote outside of the buffer"
        assert not inside.all(), "the buffer has no outside"


def _block(like: Tensor, *shape: int) -> Tensor:
    return torch.full(shape, SENTINEL, dtype=like.dtype, device=like.device)


def in_the_middle(like: Tensor) -> Buffer:
    """Contiguous, with a storage offset and neighbours on both sides."""
    block = _block(like, like.numel() + 66)
    return Buffer(block, block[33 : 33 + like.numel()].view(like.shape))


def every_second(like: Tensor) -> Buffer:
    """Every second entry of the last dimension."""
    shape = like.shape or (1,)
    block = _block(like, *shape[:-1], 2 * shape[-1] + 3)
    view = block[..., 1 : 1 + 2 * shape[-1] : 2]
    return Buffer(block, view if like.dim() else view.squeeze(0))


def reversed_dims(like: Tensor) -> Buffer:
    """The first dimension is the fastest, and rows are longer than they are used."""
    reverse = like.shape[::-1] or (1,)
    block = _block(like, *reverse[:-1], reverse[-1] + 2)
    view = block[..., 1 : 1 + reverse[-1]]
    return Buffer(block, view.permute(*reversed(range(view.dim()))).reshape(like.shape))


BUFFERS: dict[str, Callable[[Tensor], Buffer]] = {
    "in_the_middle": in_the_middle,
    "every_second": every_second,
    "reversed_dims": reversed_dims,
}


def _through(buffer: Callable[[Tensor], Buffer]) -> Callable[[Tensor], Tensor]:
    return lambda tensor: buffer(tensor).view.copy_(tensor)


def channels_last(tensor: Tensor) -> Tensor:
    """Channels fastest, in tensors of at least four dimensions, whatever leads."""
    if tensor.dim() < 4:
        return tensor.clone()
    return tensor.movedim(-3, -1).contiguous().movedim(-1, -3)


# Each keeps every value.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": channels_last,
    **{name: _through(buffer) for name, buffer in BUFFERS.items()},
}
