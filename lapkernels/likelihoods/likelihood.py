"""The interface of a likelihood: its value, score, and Hessian in the outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.ops.base.checks import expect, expect_finite, gathered
from lapkernels.ops.base.precision import HALF

FLOATING = (*HALF, torch.float32, torch.float64)


@dataclass(frozen=True)
class LocalColumns:
    """All columns at once, where each is zero outside one set of entries of the outputs.

    Entries that differ along ``dim`` only are a set, or each entry is one if that is None. Column
    (j, set) has the entries of ``root`` [J, N, *out] that root[j] has in the set: J columns a set,
    in the memory of J.
    """

    root: Tensor
    dim: int | None = None


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

    @property
    def signed(self) -> int:
        """The number W of columns that ``combined`` adds up."""
        return self.count

    @abstractmethod
    def combined(self, signs: Tensor) -> Tensor:
        """s_{k,n} = sum_w e_{k,n,w} s_{n,w} for signs e [K, N, W], as [K, N, *out].

        With random signs E[s_n s_nᵀ] = H_n and E[s_n s_mᵀ] = 0, at the cost of about one column.
        These W columns may be those of another factor of H_n than the columns of ``chunk``.
        """

    def local(self) -> LocalColumns | None:
        """All columns at once; None where H couples all outputs of a sample."""
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
        with gathered():
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


# What stands for a likelihood, filled in by the file of each: words, classes of torch's losses
# (None: any other loss), and the functions of these classes.
WORDS: dict[str, Callable[[], Likelihood]] = {}
LOSSES: dict[type | None, Callable[[Any], Likelihood]] = {}
FUNCTIONS: list[tuple[Callable[..., Any], type[nn.Module]]] = []


def resolve(value: Likelihood | str | nn.Module | Callable[..., Any]) -> Likelihood:
    """The likelihood that ``value`` stands for.

    - a ``Likelihood``: itself;
    - a word: "gaussian" or "regression", "categorical" or "classification", "bernoulli" or
      "multilabel", "poisson", "heteroscedastic", with their default settings;
    - ``nn.MSELoss``, ``nn.CrossEntropyLoss``, ``nn.BCEWithLogitsLoss``, ``nn.PoissonNLLLoss`` or
      their functions in ``torch.nn.functional``: the closed form of that loss. The curvature is
      that of the **sum** over samples and positions, for every ``reduction``: a mean is undone.
      MSELoss sums squares without a factor 1/2, which is ``Gaussian(variance=0.5)``;
    - any other loss(f, y): ``LossFunction``. It must return a sum; a module of torch that has a
      ``reduction`` is copied with ``reduction="sum"``.
    """
    if isinstance(value, Likelihood):
        return value
    if isinstance(value, str):
        if value not in WORDS:
            raise ValueError(f"likelihood = {value!r}: one of {', '.join(WORDS)} is needed")
        return WORDS[value]()
    if isinstance(value, type):
        raise TypeError(f"likelihood is the class {value.__name__}: pass an instance of it")
    if not callable(value):
        raise TypeError(
            f"likelihood is a {type(value).__name__}: a Likelihood, a word or a loss is needed"
        )
    for function, module in FUNCTIONS:
        if value is function:
            value = module()
    # A subclass may compute something else, so only the exact classes have closed forms.
    return LOSSES.get(type(value), LOSSES[None])(value)


class Signs:
    """Draws of random signs [N, W]: orthogonal over the columns w, independent over the samples n.

    Draw k is e_k = e ∘ h_k with random signs e [N, W] and rows h_k [W], in random order, of a
    Hadamard matrix of ``period`` rows, the power of two from W on. So the mean of e_k e_kᵀ over a
    whole period is the identity, and the sampled H_n is exact.
    """

    def __init__(
        self, shape: tuple[int, int], generator: torch.Generator | None, device: torch.device
    ) -> None:
        self._generator = generator
        self._first = torch.randint(0, 2, shape, generator=generator, device=device)
        self.period = 1 << (shape[1] - 1).bit_length() if shape[1] else 1

    @cached_property
    def _order(self) -> Tensor:
        # Draw 0 is e: one draw alone needs no order. Of a large matrix some rows are enough.
        rows = min(self.period, 1 << 16)
        order = torch.randperm(rows, generator=self._generator, device=self._first.device)
        return order ^ order[0]

    def draws(self, first: int, last: int, dtype: torch.dtype) -> Tensor:
        """Draws first <= k < last, [last - first, N, W]."""
        bits = self._first.unsqueeze(0)
        if (first, last) != (0, 1):
            k = torch.arange(first, last, device=bits.device)
            row = self._order[k % len(self._order)]
            w = torch.arange(bits.shape[2], device=bits.device)
            bits = bits ^ _parity(row.unsqueeze(1) & w).unsqueeze(1)
        return bits.to(dtype).mul_(2).sub_(1)


def _parity(x: Tensor) -> Tensor:
    """Whether the number of ones among the lower 32 bits is odd."""
    for shift in (16, 8, 4, 2, 1):
        x = x ^ (x >> shift)
    return x & 1


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
    needed = "finite values are needed"
    expect_finite(value.sum(), lambda: check_all(name, value, value.isfinite(), needed))


def check_all(name: str, value: Tensor, good: Tensor, needed: str) -> None:
    """Raise unless ``good`` holds everywhere, with the first entry of ``value`` where not."""

    def explain() -> None:
        bad = good.logical_not().nonzero()
        if not len(bad):
            return
        first = tuple(int(i) for i in bad[0])
        where = f"[{', '.join(map(str, first))}]" if first else ""
        others = f" and {len(bad) - 1} more entries" if len(bad) > 1 else ""
        raise ValueError(f"{name}{where} = {value[first].item()}{others}: {needed}")

    expect(good, explain)


def class_dim(f: Tensor, dim: int) -> int:
    """``dim`` counted from the front; raise if it is not one of the output's dimensions."""
    found = dim + f.dim() if dim < 0 else dim
    if not 1 <= found < f.dim():
        raise ValueError(
            f"dim = {dim} is no output dimension of f of shape {tuple(f.shape)}, "
            "whose dimension 0 counts samples"
        )
    return found
