r"""Update rules of an online posterior's precision.

Every rule is :math:`H \leftarrow \rho H + c \, d`, with d the diagonal of
:math:`J^T \Sigma^{-1} J` of the batch and :math:`\alpha` the memory factor.
"""

from __future__ import annotations

from typing import Literal, get_args

Update = Literal["online", "redux", "adaptive_newton", "natural_gradient"]


def decay_and_scale(update: Update, memory: float) -> tuple[float, float]:
    r""":math:`(\rho, c)` of a rule.

    - ``online``: :math:`H \leftarrow (1 - \alpha) H + d`, Laplacian autoencoders (Miani et al.,
      2022);
    - ``redux``: :math:`H \leftarrow d`, which with the prior is the Laplace approximation of the
      last batch (Daxberger et al., 2021);
    - ``adaptive_newton``: :math:`H \leftarrow H + \alpha d` (Khan et al., 2017);
    - ``natural_gradient``: :math:`H \leftarrow (1 - \alpha) H + \alpha d` (Zhang et al., 2017).
    """
    if not 0 <= memory <= 1:
        raise ValueError(f"memory={memory} must lie between 0 and 1: it is the factor α")
    rules = {
        "online": (1 - memory, 1.0),
        "redux": (0.0, 1.0),
        "adaptive_newton": (1.0, memory),
        "natural_gradient": (1 - memory, memory),
    }
    if update not in rules:
        raise ValueError(f"update={update!r} must be one of {get_args(Update)}")
    return rules[update]
