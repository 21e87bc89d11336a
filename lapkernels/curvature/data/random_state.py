"""Restoring torch's random state, of the CPU and of the GPUs in use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lapkernels.curvature.data.batches import tensors_in


@contextmanager
def random_state_kept(*values: Any) -> Iterator[None]:
    """Restore torch's default generators afterwards, of the CPU and of the GPUs of ``values``.

    These are models and nests of tensors.
    """
    with torch.random.fork_rng(gpus_of(*values), device_type="cuda"):
        yield


@contextmanager
def seeded(seed: int, *values: Any) -> Iterator[None]:
    """As :func:`random_state_kept`, with these generators started from a seed inside."""
    found = gpus_of(*values)
    with torch.random.fork_rng(found, device_type="cuda"):
        # torch.manual_seed would seed the other GPUs too.
        torch.default_generator.manual_seed(seed)
        for gpu in found:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


def gpus_of(*values: Any) -> list[torch.device]:
    """The GPUs of the tensors in models and nests; none before CUDA is initialised."""
    if not torch.cuda.is_initialized():
        return []
    return unique_gpus(tensor.device for value in values for tensor in _tensors(value))


def unique_gpus(devices: Iterable[torch.device]) -> list[torch.device]:
    """Those that are GPUs, each once, in order."""
    return list(dict.fromkeys(device for device in devices if device.type == "cuda"))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    else:
        yield from tensors_in(value)
