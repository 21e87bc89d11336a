"""Counts what a GPU would do: launches by op, and waits of the host by the line that waits."""

from __future__ import annotations

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PACKAGE = str(Path(__file__).parents[1] / "lapkernels")
# Ops whose result's value or shape the host has to know.
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2")
WAITS += ("unique_dim", "unique_consecutive", "bincount", "multinomial", "repeat_interleave.Tensor")
# Ops that only describe memory.
VIEWS = ("detach", "alias", "empty", "new_empty", "empty_like", "empty_strided", "lift_fresh")
VIEWS += ("_unsafe_view", "_reshape_alias", "as_strided", "new_empty_strided")


class Launches(TorchDispatchMode):
    """Inside, ``launched`` counts ops and ``waits`` the lines of the package that wait.

    Tensors of another device count as numbers of the host. Values of fake tensors, which do not
    exist, are read as one, or as True.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.launched: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        namespace, _, name = str(func).partition(".")
        op = name.removesuffix(".default")
        fake = bool(args) and type(args[0]).__name__ == "FakeTensor"
        here = bool(args) and getattr(args[0], "device", torch.device("meta")).type == self.device
        copied = op == "_to_copy" and kwargs.get("device") == torch.device("cpu")
        if op.startswith(WAITS) or (copied and self.device != "cpu"):
            if here:
                self.waits[_line()] += 1
            if fake and op.startswith("_local_scalar_dense"):
                kind = args[0].dtype
                return kind == torch.bool or (1.0 if kind.is_floating_point else 1)
            if fake and op.startswith(("equal", "is_nonzero")):
                return True
        elif not (func.is_view or op.startswith(VIEWS) or namespace in ("prim", "sym")):
            self.launched[op] += 1
        return func(*args, **kwargs)


def _line() -> str:
    """The innermost line of the package that is being run."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(PACKAGE):
            return f"{Path(frame.filename).relative_to(PACKAGE)}:{frame.lineno}"
    return "the model"
