"""Checks of outputs and targets, and the dtype to compute in."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
FLOATING = (*HALF, torch.float32, torch.float64)


def widened(f: Tensor) -> Tensor:
    """``f``, in float32 where its own dtype is half precision."""
    return f.float() if f.dtype in HALF else f


def check_output(f: Tensor) -> None:
    """Raise unless ``f`` is a real floating tensor [N, *out]."""
    if not isinstance(f, Tensor):
        raise TypeError(f"f is a {type(f).__name__}: a tensor [N, *out] is needed")
    if f.dtype not in FLOATING:
        raise TypeError(f"f has dtype {f.dtype}: float16, bfloat16, float32 or float64 is needed")
    if f.dim() == 0:
        raise ValueError("f is a scalar: outputs [N, *out] are needed")


def check_target(f: Tensor, y: Tensor | None, shape: Sequence[int], meaning: str) -> None:
    """Raise unless ``y`` is None, or real, of this shape, and on the device of ``f``."""
    if y is None:
        return
    check_target_tensor(f, y)
    if y.shape != torch.Size(shape):
        raise ValueError(
            f"y has shape {tuple(y.shape)}, but {meaning} {tuple(shape)} for f of shape "
            f"{tuple(f.shape)}"
        )


def check_target_tensor(f: Tensor, y: Tensor) -> None:
    """Raise unless ``y`` is a real tensor on the device of ``f``."""
    if not isinstance(y, Tensor):
        raise TypeError(f"y is a {type(y).__name__}: a tensor is needed")
    if y.is_complex():
        raise TypeError(f"y has dtype {y.dtype}: a real dtype is needed")
    check_device("y", y, f)


def check_vector(f: Tensor, v: Tensor) -> None:
    """Raise unless ``v`` is [..., *f.shape] in the dtype and on the device of ``f``."""
    if v.dim() < f.dim() or v.shape[v.dim() - f.dim() :] != f.shape:
        raise ValueError(f"v has shape {tuple(v.shape)}, but it must end in {tuple(f.shape)}")
    if v.dtype != f.dtype:
        raise TypeError(f"v has dtype {v.dtype}, but f has {f.dtype}")
    check_device("v", v, f)


def check_device(name: str, value: Tensor, f: Tensor) -> None:
    """Raise unless ``value`` is on the device of ``f``."""
    if value.device != f.device:
        raise ValueError(f"{name} is on {value.device}, but f is on {f.device}")


def check_finite(name: str, value: Tensor) -> None:
    """Raise if ``value`` holds infinities or NaN."""
    # One pass over memory: minimum and maximum are NaN if any entry is.
    if value.numel() == 0 or all(isfinite(end.item()) for end in value.aminmax()):
        return
    check_all(name, value, value.isfinite(), "finite values are needed")


def check_all(name: str, value: Tensor, good: Tensor, needed: str) -> None:
    """Raise unless ``good`` holds everywhere, with the first entry of ``value`` where not."""
    if bool(good.all()):
        return
    bad = good.logical_not().nonzero()
    first = tuple(int(i) for i in bad[0])
    where = f"[{', '.join(map(str, first))}]" if first else ""
    others = f" and {len(bad) - 1} more entries" if len(bad) > 1 else ""
    raise ValueError(f"{name}{where} = {value[first].item()}{others}: {needed}")


def class_dim(f: Tensor, dim: int) -> int:
    """``dim`` counted from the front; raise if it is not one of the output's dimensions."""
    found = dim + f.dim() if dim < 0 else dim
    if not 1 <= found < f.dim():
        raise ValueError(
            f"dim = {dim} is no output dimension of f of shape {tuple(f.shape)}, "
            "whose dimension 0 counts samples"
        )
    return found
