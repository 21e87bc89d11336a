r"""Running precision of an online posterior: :math:`h \leftarrow \rho h + c \, d`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapkernels.ops.base.parameter_lists import check_lists
from lapkernels.ops.base.registration import accumulate, register_list_update


def precision_update(
    precision: Sequence[Tensor], diagonal: Sequence[Tensor], decay: float, scale: float = 1.0
) -> None:
    """Set ``precision <- decay * precision + scale * diagonal``, lists in place, in one pass.

    Eq. 65 of Laplacian autoencoders has decay 1 - alpha and scale 1.
    """
    check_lists(precision=precision, diagonal=diagonal)
    _op(list(precision), list(diagonal), decay, scale)


def _reference(
    precision: Sequence[Tensor], diagonal: Sequence[Tensor], decay: float, scale: float
) -> None:
    for h, d in zip(precision, diagonal, strict=True):
        accumulate(h, d, decay, scale)


_op = register_list_update(
    "precision_update",
    "Tensor(a!)[] precision, Tensor[] diagonal, float decay, float scale",
    reference=_reference,
)
