"""The interface of a likelihood: its value, score, and Hessian in the outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from lapkernels.likelihoods._checks import check_finite


class Columns(ABC):
    """A factor of the output Hessian, H_n = sum_v s_{n,v} s_{n,v}ᵀ, made a few columns at a time.

    H_n has the shape [*out, *out]; H_n of the batch is never formed, nor are all s at once.
    """

    @property
    @abstractmethod
    def count(self) -> int:
        """The number V of columns of each sample."""

    @property
    def shared(self) -> bool:
        """Whether every sample has the same columns."""
        return False

    @abstractmethod
    def chunk(self, first: int, last: int) -> Tensor:
        """Columns first <= v < last, [last - first, N, *out]; an expanded view if shared."""

    @abstractmethod
    def signs(self, generator: torch.Generator | None = None) -> Tensor:
        """s_n = sum_v e_{n,v} s_{n,v} with independent random signs e, [1, N, *out].

        E[s_n s_nᵀ] = H_n and E[s_n s_mᵀ] = 0, at the cost of about one column. The columns summed
        may be those of another factor of H_n than the columns of ``chunk``.
        """

    def local(self) -> Tensor | None:
        """All columns at once, for outputs [N, C, *size] whose positions are independent.

        [J, N, C, *size], where the entries [j, :, :, t] are column (j, t), zero at other positions:
        J columns a position in the memory of J. None where H couples positions, or there are none.
        """
        return None

    def check_range(self, first: int, last: int) -> None:
        """Raise unless 0 <= first <= last <= count."""
        if not 0 <= first <= last <= self.count:
            raise ValueError(
                f"first = {first}, last = {last}: 0 <= first <= last <= {self.count} is needed"
            )


class Likelihood(ABC):
    """p(y | f) of outputs f [N, *out], independent over samples, any output shape.

    Sums run over samples and output positions, with no factor 1/N. Results have the dtype of f;
    float16 and bfloat16 are computed in float32, and the scalar ``nll`` stays in float32. Shapes
    are checked at every call, values only by ``check``, which waits for the device.
    """

    @property
    def needs_target(self) -> bool:
        """Whether the Hessian at the outputs depends on the targets."""
        return False

    @property
    def independent(self) -> bool:
        """Whether the outputs of a sample are independent: H_n is ``diagonal`` and nothing else."""
        return False

    def check(self, f: Tensor, y: Tensor | None = None) -> None:
        """Raise if shapes, dtypes, devices or values of outputs and targets do not fit."""
        self.check_shapes(f, y)
        check_finite("f", f)
        self.check_values(f, y)

    @abstractmethod
    def check_shapes(self, f: Tensor, y: Tensor | None = None) -> None:
        """Raise if shapes, dtypes or devices do not fit; reads no values."""

    @abstractmethod
    def check_values(self, f: Tensor, y: Tensor | None = None) -> None:
        """Raise if values of outputs or targets are out of range."""

    @abstractmethod
    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """-log p(y | f), summed over samples and positions, up to a constant in f. A scalar."""

    def constant(self, f: Tensor, y: Tensor) -> Tensor:
        """What ``nll`` leaves out: -log p(y | f) = nll + constant. It does not depend on f."""
        return f.new_zeros((), dtype=torch.float64)

    @abstractmethod
    def score(self, f: Tensor, y: Tensor) -> Tensor:
        """d nll / d f, [N, *out]."""

    @abstractmethod
    def sample(
        self, f: Tensor, generator: torch.Generator | None = None, y: Tensor | None = None
    ) -> Tensor:
        """Targets drawn from p(y | f). ``y``, if given, says which positions hold no target."""

    def sampled_column(
        self, f: Tensor, generator: torch.Generator | None = None, y: Tensor | None = None
    ) -> Tensor:
        """The score s at targets drawn from the model, [1, N, *out]: E[s_n s_nᵀ] = H_n."""
        return self.score(f, self.sample(f, generator, y)).unsqueeze(0)

    @abstractmethod
    def columns(self, f: Tensor, y: Tensor | None = None) -> Columns:
        """The factor of the Hessian H_n of -log p(y_n | f_n) in f_n."""

    @abstractmethod
    def diagonal(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """diag(H_n), [N, *out]."""

    @abstractmethod
    def product(self, f: Tensor, v: Tensor, y: Tensor | None = None) -> Tensor:
        """H_n v_n for v [..., N, *out], in the shape of v."""


def random_signs(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Independent +1 and -1 of the shape, dtype and device of ``like``."""
    bits = torch.randint(0, 2, like.shape, generator=generator, device=like.device)
    return bits.to(like.dtype).mul_(2).sub_(1)
