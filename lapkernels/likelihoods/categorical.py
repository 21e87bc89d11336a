"""Categorical likelihood: classification of samples, pixels or tokens.

The Hessian at a position is c times the covariance diag(p) - p pᵀ of one draw from C classes. With
tails q_j = sum_{i >= j} p_i, q_0 = 1, the covariance is sum_{j < C-1} s_j s_jᵀ, where

    s_j[j] = r_j = sqrt(p_j q_{j+1} / q_j),   s_j[i] = -r_j p_i / q_{j+1}  for i > j,   else 0

(Tanabe and Sagae, 1992). It is computed from logarithms, and tails are sums of the probabilities
themselves, never 1 - sum: saturated ones lose no digits and divide no zeros. Tensors are [N, C, T]:
sample, class, position; c is [N, 1, T].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lapkernels.likelihoods.likelihood import (
    FUNCTIONS,
    LOSSES,
    WORDS,
    Columns,
    Likelihood,
    LocalColumns,
    check_all,
    check_output,
    check_target,
    check_target_tensor,
    check_vector,
    class_dim,
)
from lapkernels.ops.base.precision import widened

# torch's default, which no label has by accident.
NO_TARGET = -100


@dataclass(frozen=True, eq=False)
class Categorical(Likelihood):
    """p(y = c) = softmax(f)_c at every position, logits f with the classes along ``dim``.

    Targets are class labels (integers, the shape of f without ``dim``) or class probabilities
    (floating, the shape of f). The nll is ``torch.nn.functional.cross_entropy`` with
    ``reduction="sum"`` and the same ``weight``, ``label_smoothing`` and ``ignore_index``:

        nll = -sum_c t_c log p_c,   score = c p - t,   H = c (diag(p) - p pᵀ),   c = sum_c t_c,

    at each position, where t is the target after smoothing and weighting. So c = 1 without
    weights, whatever the smoothing, and c = 0 at positions whose label is ``ignore_index``. H has
    rank C - 1: V = (C - 1) * positions.

    The Hessian depends on targets if there are weights, or an ``ignore_index`` of the user's own.
    With the default one, no targets means that none is to be ignored.
    """

    dim: int = 1
    weight: Tensor | None = None
    label_smoothing: float = 0.0
    ignore_index: int = NO_TARGET

    def __post_init__(self) -> None:
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise ValueError(f"label_smoothing = {self.label_smoothing}: 0 to 1 is needed")
        weight = self.weight
        if weight is None:
            return
        if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.dim() != 1:
            raise TypeError(f"weight = {weight!r}: a floating tensor [classes] is needed")
        good = weight.isfinite() & (weight >= 0)
        check_all("weight", weight, good, "finite weights that are not negative are needed")

    @property
    def needs_target(self) -> bool:
        """Whether there are class weights or an ``ignore_index`` of the user's own."""
        return self.weight is not None or self.ignore_index != NO_TARGET

    def check_shapes(self, f: Tensor, y: Tensor | None = None) -> None:
        """Labels have the shape of f without ``dim``, class probabilities that of f."""
        check_output(f)
        one_logit = 'of one logit for two classes the likelihood is Bernoulli, "bernoulli"'
        if f.dim() == 1:
            raise ValueError(f"f of shape {tuple(f.shape)} has no classes: {one_logit}")
        dim = class_dim(f, self.dim)
        if f.shape[dim] < 2:
            raise ValueError(
                f"f of shape {tuple(f.shape)} has {f.shape[dim]} classes along dim = {self.dim}, "
                f"two at least are needed: {one_logit}"
            )
        if self.weight is not None and len(self.weight) != f.shape[dim]:
            raise ValueError(f"weight has {len(self.weight)} classes, but f has {f.shape[dim]}")
        if y is None:
            return
        check_target_tensor(f, y)
        if y.is_floating_point():
            meaning = "class probabilities (y is floating; labels are y.long()) have the shape"
            check_target(f, y, f.shape, meaning)
        elif y.dtype == torch.bool:
            raise TypeError("y has dtype torch.bool: integer labels or probabilities are needed")
        else:
            shape = (*f.shape[:dim], *f.shape[dim + 1 :])
            check_target(f, y, shape, "class labels (y is integer) have the shape")

    def check_values(self, f: Tensor, y: Tensor | None = None) -> None:
        """Labels are classes or ``ignore_index``; probabilities are in [0, 1] and add up to 1."""
        if y is None:
            return
        if y.is_floating_point():
            check_all("y", y, (y >= 0) & (y <= 1), "probabilities in [0, 1] are needed")
            total = widened(y).sum(self.dim)
            near = (total - 1).abs() <= 8 * torch.finfo(y.dtype).eps ** 0.5
            check_all(f"y.sum({self.dim})", total, near, "probabilities that add up to 1")
        else:
            classes = f.shape[self.dim]
            good = (y == self.ignore_index) | ((y >= 0) & (y < classes))
            check_all(
                "y", y, good, f"labels 0 to {classes - 1} or ignore_index = {self.ignore_index}"
            )

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """-sum_c t_c log p_c, summed over samples and positions."""
        self.check_shapes(f, y)
        f = widened(f)
        soft = y.is_floating_point()
        return F.cross_entropy(
            f.movedim(self.dim, 1),
            y.to(f.dtype).movedim(self.dim, 1) if soft else y.long(),
            weight=self._weight(f),
            ignore_index=self.ignore_index,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )

    def score(self, f: Tensor, y: Tensor) -> Tensor:
        """c p - t, [N, *out], as p (c - t) - (1 - p) t: nothing cancels where p is near 1."""
        self.check_shapes(f, y)
        p = self._probabilities(f)
        return self._restored(_residual(p, self._target(f, y)), f)

    def sample(
        self, f: Tensor, generator: torch.Generator | None = None, y: Tensor | None = None
    ) -> Tensor:
        """Labels drawn from softmax(f); those that ``y`` ignores stay ignored."""
        self.check_shapes(f, y)
        p = self._probabilities(f)
        rows = p.transpose(1, 2).flatten(0, 1)
        # torch.multinomial waits for the device, to check the probabilities.
        noise = torch.empty_like(rows).exponential_(generator=generator)
        drawn = (rows / noise).argmax(1)
        labels = drawn.reshape(f.movedim(self.dim, 1)[:, 0].shape)
        if y is None or y.is_floating_point():
            return labels
        return labels.where(y != self.ignore_index, self.ignore_index)

    def sampled_column(
        self, f: Tensor, generator: torch.Generator | None = None, y: Tensor | None = None
    ) -> Tensor:
        """sqrt(c) (p - e_l) with l drawn from p: c of the true target, and no smoothing.

        The score at a drawn label is biased: it has that label's weight and smoothing.
        """
        scale = self._scale(f, y)
        p = self._probabilities(f)
        drawn = _flat_labels(self.sample(f, generator))
        column = _residual(p, torch.zeros_like(p).scatter(1, drawn, 1.0))
        column = column if scale is None else column * scale.sqrt()
        return self._restored(column, f).unsqueeze(0)

    def columns(self, f: Tensor, y: Tensor | None = None) -> Columns:
        """C - 1 columns a position."""
        scale = self._scale(f, y)
        dim = class_dim(f, self.dim)
        return MultinomialColumns(self._flat(f).log_softmax(1), scale, f.shape, dim, f.dtype)

    def diagonal(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """c p (1 - p), [N, *out]."""
        scale = self._scale(f, y)
        p = self._probabilities(f)
        value = p * complement(p)
        return self._restored(value if scale is None else value * scale, f)

    def product(self, f: Tensor, v: Tensor, y: Tensor | None = None) -> Tensor:
        """c (p v - p pᵀ v), in the shape of v."""
        scale = self._scale(f, y)
        check_vector(f, v)
        lead = v.dim() - f.dim()
        dim = lead + class_dim(f, self.dim)
        ordered = widened(v).movedim(dim, lead + 1)
        flat = ordered.reshape(*ordered.shape[: lead + 2], ordered.shape[lead + 2 :].numel())
        value = covariance_product(self._probabilities(f), flat)
        value = value if scale is None else value * scale
        return value.reshape(ordered.shape).movedim(lead + 1, dim).to(f.dtype)

    def _flat(self, f: Tensor) -> Tensor:
        """f [N, *out] as [N, C, T], in float32 at least."""
        f = widened(f).movedim(self.dim, 1)
        return f.reshape(*f.shape[:2], f.shape[2:].numel())

    def _probabilities(self, f: Tensor) -> Tensor:
        return self._flat(f).softmax(1)

    def _restored(self, flat: Tensor, f: Tensor) -> Tensor:
        """[N, C, T] in the shape and dtype of f."""
        ordered = f.movedim(self.dim, 1).shape
        return flat.reshape(ordered).movedim(1, self.dim).to(f.dtype)

    def _weight(self, f: Tensor) -> Tensor | None:
        return None if self.weight is None else self.weight.to(f)

    def _target(self, f: Tensor, y: Tensor) -> Tensor:
        """t [N, C, T]: the target as probabilities, smoothed, weighted, zero where ignored."""
        wide = widened(f)
        classes = f.shape[self.dim]
        if y.is_floating_point():
            kept, t = None, self._flat(y.to(wide.dtype))
        else:
            labels = _flat_labels(y)
            kept = labels != self.ignore_index
            t = torch.zeros_like(self._flat(f))
            t = t.scatter(1, labels.where(kept, 0), 1.0)
        t = t * (1 - self.label_smoothing) + self.label_smoothing / classes
        weight = self._weight(wide)
        t = t if weight is None else t * weight.unsqueeze(1)
        return t if kept is None else t * kept

    def _scale(self, f: Tensor, y: Tensor | None) -> Tensor | None:
        """c [N, 1, T], or None where it is one everywhere; ``f`` and ``y`` are checked."""
        self.check_shapes(f, y)
        if y is None:
            if self.needs_target:
                name = "ignore_index" if self.weight is None else "weight"
                raise ValueError(
                    f"y is None, but the Hessian depends on the targets through {name}: pass them"
                )
            return None
        if self.weight is None and not y.is_floating_point():
            kept = _flat_labels(y) != self.ignore_index
            return kept.to(widened(f).dtype)
        return self._target(f, y).sum(1, keepdim=True)


def _flat_labels(y: Tensor) -> Tensor:
    """Labels [N, *positions] as [N, 1, T]."""
    return y.long().reshape(y.shape[0], 1, y.shape[1:].numel())


def _residual(p: Tensor, t: Tensor) -> Tensor:
    """(sum_c t_c) p - t, [N, C, T]."""
    # At the label of a one-hot target the sum over the others is exactly zero.
    return p * complement(t) - complement(p) * t


@dataclass(frozen=True, eq=False)
class MultinomialColumns(Columns):
    """Column v = t (C - 1) + j is sqrt(c) s_j at position t and zero at the others.

    ``shape`` and ``dim`` are those of the outputs: [N, *out] with classes along ``dim``.
    """

    log_p: Tensor
    scale: Tensor | None
    shape: torch.Size
    dim: int
    dtype: torch.dtype

    @property
    def count(self) -> int:
        """V = (C - 1) T."""
        return (self.log_p.shape[1] - 1) * self.log_p.shape[2]

    @cached_property
    def log_tails(self) -> Tensor:
        """log q_j, [N, C, T]."""
        return self.log_p.flip(1).logcumsumexp(1).flip(1)

    def chunk(self, first: int, last: int) -> Tensor:
        """Columns [last - first, N, *out]."""
        self.check_range(first, last)
        _, classes, positions = self.log_p.shape
        index = torch.arange(first, last, device=self.log_p.device)
        t, j = index // (classes - 1), index % (classes - 1)
        column = self._entries(j, t).permute(2, 0, 1).unsqueeze(3)
        if positions > 1:
            there = t.unsqueeze(1) == torch.arange(positions, device=self.log_p.device)
            column = torch.where(there[:, None, None], column, 0.0)
        return self._unflattened(column)

    def local(self) -> LocalColumns | None:
        """Column (j, t) is sqrt(c) s_j of position t."""
        if len(self.shape) < 3:
            return None
        _, classes, positions = self.log_p.shape
        t = torch.arange(positions, device=self.log_p.device).repeat(classes - 1)
        j = torch.arange(classes - 1, device=self.log_p.device).repeat_interleave(positions)
        entries = self._entries(j, t).unflatten(2, (classes - 1, positions))
        return LocalColumns(self._unflattened(entries.permute(2, 0, 1, 3)), self.dim)

    def _entries(self, j: Tensor, t: Tensor) -> Tensor:
        """sqrt(c) s_j at position t for pairs of j and t, [N, C, pairs]."""
        classes = self.log_p.shape[1]
        tail, below = self.log_tails[:, j, t], self.log_tails[:, (j + 1).clamp_max(classes - 1), t]
        log_root = 0.5 * (self.log_p[:, j, t] + below - tail)
        i = torch.arange(classes, device=self.log_p.device).unsqueeze(1)
        # Where i < j the quotient p_i / q_{j+1} may overflow, which would make gradients NaN.
        log_ratio = (self.log_p[:, :, t] - below.unsqueeze(1)).masked_fill_(i <= j, 0.0)
        sign = torch.where(i == j, 1.0, torch.where(i > j, -1.0, 0.0)).to(self.log_p.dtype)
        # Columns fill the memory budget: no more than two such tensors at a time.
        column = log_ratio.add_(log_root.unsqueeze(1)).exp_()
        del log_ratio
        column = sign * column
        if self.scale is not None:
            column = column * self.scale.sqrt()[:, :, t]
        return column.to(self.dtype)

    @property
    def signed(self) -> int:
        """C T: one column more a position than ``chunk`` has, but without quotients."""
        return self.log_p.shape[1] * self.log_p.shape[2]

    def combined(self, signs: Tensor) -> Tensor:
        """sqrt(c) sum_i e_i sqrt(p_i) (1_i - p), [K, N, *out]."""
        p, root = self.log_p.exp(), (0.5 * self.log_p).exp()
        rest = complement(p)
        made = torch.stack(
            [
                e * rest - p * complement(e)
                for e in root * signs.view(len(signs), *p.shape).to(p.dtype)
            ]
        )
        made = made if self.scale is None else made * self.scale.sqrt()
        return self._unflattened(made.to(self.dtype))

    def _unflattened(self, columns: Tensor) -> Tensor:
        """[k, N, C, T] as [k, N, *out]."""
        others = [size for d, size in enumerate(self.shape) if d not in (0, self.dim)]
        shape = (columns.shape[0], self.shape[0], columns.shape[2], *others)
        return columns.reshape(shape).movedim(2, self.dim + 1)


def before(x: Tensor) -> Tensor:
    """sum_{j < i} x_j along the classes, with no subtraction."""
    shifted = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    return shifted.cumsum(1)


def after(x: Tensor) -> Tensor:
    """sum_{j > i} x_j along the classes, with no subtraction."""
    return before(x.flip(1)).flip(1)


def complement(x: Tensor) -> Tensor:
    """sum_{j != i} x_j along the classes: 1 - p to all digits, also where p is near 1."""
    return before(x) + after(x)


def covariance_product(p: Tensor, v: Tensor) -> Tensor:
    """(diag(p) - p pᵀ) v for v [..., N, C, T].

    v is taken relative to its value at the largest p: constants are in the null space, and the
    product's entry at a p near 1 then is a sum over the others instead of a difference.
    """
    top = p.argmax(1, keepdim=True).expand(*v.shape[:-2], 1, v.shape[-1])
    u = v - v.gather(-2, top)
    return p * (u - (p * u).sum(-2, keepdim=True))


def _cross_entropy(loss: nn.CrossEntropyLoss) -> Likelihood:
    return Categorical(
        weight=loss.weight, label_smoothing=loss.label_smoothing, ignore_index=loss.ignore_index
    )


def _log_probabilities(loss: nn.NLLLoss) -> Likelihood:
    raise ValueError(
        "NLLLoss is linear in log-probabilities, so its curvature there is zero: leave the "
        "log-softmax out of the model and use CrossEntropyLoss or Categorical"
    )


WORDS.update(categorical=Categorical, classification=Categorical)
LOSSES.update({nn.CrossEntropyLoss: _cross_entropy, nn.NLLLoss: _log_probabilities})
FUNCTIONS.extend([(F.cross_entropy, nn.CrossEntropyLoss), (F.nll_loss, nn.NLLLoss)])
