"""Checks of parameter lists."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapkernels.ops.base.geometry import check_same, check_shape


def check_lists(**lists: Sequence[Tensor]) -> None:
    """Raise unless the lists match in length, and entry by entry in shape, dtype and device."""
    (first_name, first), *others = lists.items()
    if len(first) == 0:
        raise ValueError(f"{first_name} is empty")
    check_same(
        f"{first_name}[0]", first[0], **{f"{first_name}[{i}]": t for i, t in enumerate(first)}
    )
    if not first[0].is_floating_point():
        raise TypeError(f"{first_name} has dtype {first[0].dtype}: a real floating dtype is needed")
    for name, entries in others:
        if len(entries) != len(first):
            raise ValueError(
                f"{name} has {len(entries)} entries, but {first_name} has {len(first)}"
            )
        for index, (entry, wanted) in enumerate(zip(entries, first, strict=True)):
            check_shape(f"{name}[{index}]", entry, wanted.shape)
            check_same(first_name, wanted, **{f"{name}[{index}]": entry})
