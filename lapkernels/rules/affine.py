"""Layers that multiply by a weight: matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from lapkernels import ops
from lapkernels.ops import Geometry, skips_zeros
from lapkernels.rules.base.derived import factors
from lapkernels.rules.base.rule import (
    Call,
    Kept,
    Operand,
    Rule,
    Slope,
    Unsupported,
    only,
    register_rule,
    whole_weight,
)
from lapkernels.rules.base.samples import MixesSamples, Samples, along, common, elementwise
from lapkernels.rules.base.shared import shared_product
from lapkernels.rules.base.uses import (
    OwnEntriesUse,
    ProductUse,
    RowsUse,
    ScaleUse,
    Use,
    WeightUse,
    is_constant,
)
from lapkernels.rules.elementwise import sum_to_shape

aten = torch.ops.aten
LINEAR = Geometry()


@cache
def _geometry(
    kernel: tuple[int, ...], sizes: tuple[tuple[int, ...], ...], groups: int, transposed: bool
) -> Geometry:
    """Geometry of a convolution; one number applies to all dimensions."""
    stride, padding, dilation, output_padding = (
        size * len(kernel) if len(size) == 1 else size for size in sizes
    )
    return Geometry.conv(
        kernel,
        stride,
        padding,
        dilation,
        groups,
        transposed=transposed,
        output_padding=output_padding,
    )


class Product(Rule):
    """out = a b; columns and diagonals of both sides."""

    repeatable = True

    def __init__(self, a: Operand, b: Operand) -> None:
        super().__init__()
        _differ(a, b)
        self.a = a.kept() if b.active else None
        self.b = b.kept() if a.active else None
        alone = a.samples is None and b.samples is None
        self.factors = (a.kept(), b.kept()) if alone else None

    def uses_behind(self, use: Use) -> dict[int, Use] | None:
        if self.factors is None:
            return None
        a, b = self.factors
        found = factors(use, lambda: a.tensor, lambda: b.tensor)
        return None if found is None else dict(enumerate(found))

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        if index == 0:
            return s @ self.b.tensor.mT if self.b else None
        return self.a.tensor.mT @ s if self.a else None

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor | None:
        if index == 0:
            return m @ self.b.tensor.square().mT if self.b else None
        return self.a.tensor.square().mT @ m if self.a else None


@register_rule("aten::mm")
class MatrixProduct(Product):
    """Samples are rows of a, or columns of b; the other matrix may be a weight.

    ``rows_only`` says that b is the same for all samples.
    """

    def __init__(self, call: Call, a: Operand, b: Operand) -> None:
        super().__init__(a, b)
        self.rows_only = b.samples is None
        if a.samples is not None and b.samples is not None:
            if call.count > 1:
                raise MixesSamples("both matrices depend on the sample")
            self.samples = (call.move(a.samples, lambda samples: samples),)
        elif a.samples is not None:
            self.samples = (call.move(a.samples, lambda samples: _rows(samples, 0)),)
        elif b.samples is not None:
            self.samples = (call.move(b.samples, lambda samples: _rows(samples, 1)),)
        else:
            self.samples = (None,)
        where = self.samples[0]
        if where is None:
            return
        if b.is_weight:
            self.uses[1] = _linear(b, a, where, data_first=True)
        if a.is_weight:
            self.uses[0] = _linear(a, b, where, data_first=False)

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        if index == 0 and self.b:
            return shared_product(s, self.b.tensor.mT)
        return super().pull(s, index)


@register_rule("aten::bmm")
class BatchedProduct(Product):
    """out[b] = a[b] c[b], as in attention; one side may be a weight."""

    def __init__(self, call: Call, a: Operand, b: Operand) -> None:
        super().__init__(a, b)
        found: list[Samples | None] = []
        for operand, rows in ((a, 1), (b, 2)):
            samples = operand.samples
            if samples is None:
                continue
            if call.count > 1 and samples.dim not in (0, rows):
                raise MixesSamples("it sums over a dimension that holds samples")
            found.append(call.move(samples, lambda samples: samples))
        where = common(found)
        self.samples = (where,)
        if where is None:
            return
        for index, weight, data in ((1, b, a), (0, a, b)):
            if weight.is_weight:
                self.uses[index] = _batched(weight, data, where, data_first=index == 1)


@register_rule("aten::addmm", "aten::baddbmm")
class AffineProduct(Rule):
    """out = beta * bias + alpha * a b."""

    repeatable = True

    def __init__(
        self,
        call: Call,
        bias: Operand,
        a: Operand,
        b: Operand,
        *,
        beta: float = 1,
        alpha: float = 1,
    ) -> None:
        super().__init__()
        if (alpha, beta) != (1, 1):
            raise Unsupported("alpha or beta other than one")
        _differ(bias, a, b)
        product = MatrixProduct if call.name == "aten::addmm" else BatchedProduct
        self.product = product(call, a, b)
        self.bias_shape, self.shape = bias.shape, call.out.shape
        self.samples = self.product.samples
        where = self.samples[0]
        if bias.samples is not None:
            fits = elementwise([(bias.samples, bias.shape)], call.out.shape)
            if where is None and product is BatchedProduct:
                raise Unsupported("only what is added depends on the sample")
            if where != fits:
                raise MixesSamples("what is added holds its samples in another dimension")
        self.uses = {index + 1: use for index, use in self.product.uses.items()}
        if where is not None and bias.is_weight:
            self.uses[0] = ScaleUse(bias.shape, where)

    def uses_behind(self, use: Use) -> dict[int, Use] | None:
        found = self.product.uses_behind(use)
        if found is None or self.bias_shape != self.shape:
            return None
        return {0: use, **{index + 1: one for index, one in found.items()}}

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        return self.product.pull(s, index - 1) if index else sum_to_shape(s, self.bias_shape)

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor | None:
        if index:
            return self.product.pull_diagonal(m, index - 1)
        return sum_to_shape(m.unsqueeze(0), self.bias_shape)[0]


@register_rule("aten::linear")
class Linear(Rule):
    """out = x Wᵀ + bias, with samples in any dimension of x but the last; W [O, I] has none.

    ``matrix`` is W, if x depends on parameters.
    """

    repeatable = True

    def __init__(self, call: Call, x: Operand, weight: Operand, bias: Operand | None) -> None:
        super().__init__()
        whole_weight(call, weight, bias)
        last = len(x.shape) - 1
        where = call.move(x.samples, lambda samples: along(samples, [last], "it sums"))
        if where is None:
            raise Unsupported("a product of nothing but parameters")
        self.samples = (where,)
        self.matrix = weight.kept() if x.active else None
        self.flat = last == 1
        if weight.active:
            data = x.kept()
            self.uses[1] = (
                RowsUse.of(weight.shape, lambda: data.tensor)
                if self.flat and where.outer == where.inner == 1
                else WeightUse(
                    weight.shape,
                    LINEAR,
                    lambda: _positions(data.tensor, where, 0),
                    lambda s: _positions(s, where, 1),
                )
            )
        if bias is not None and bias.active:
            self.uses[2] = ScaleUse(bias.shape, where)

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        return shared_product(s, self.matrix.tensor) if index == 0 and self.matrix else None

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor | None:
        if index or self.matrix is None:
            return None
        square = self.matrix.tensor.square()
        return (m[:1] @ square).expand(*m.shape[:-1], -1) if is_constant(m) else m @ square


@register_rule("aten::mv")
class MatrixVectorProduct(Rule):
    """out = a b with a vector b, which may be a weight."""

    def __init__(self, call: Call, a: Operand, b: Operand) -> None:
        super().__init__()
        self.a = a.kept() if b.active else None
        self.b = b.kept() if a.active else None
        if b.samples is not None:
            raise Unsupported("the vector depends on the sample")
        self.samples = (call.move(a.samples, lambda samples: _rows(samples, 0)),)
        where = self.samples[0]
        if where is not None and b.is_weight:
            x = a.kept()
            self.uses[1] = ProductUse(
                b.shape,
                lambda: _positions(x.tensor, where, 0).unsqueeze(1),
                lambda s: _positions(s.unsqueeze(-1), where, 1).unsqueeze(2),
            )

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        if index == 0:
            return s.unsqueeze(-1) * self.b.tensor if self.b else None
        return s @ self.a.tensor if self.a else None

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor | None:
        return m.unsqueeze(-1) * self.b.tensor.square() if index == 0 and self.b else None


@register_rule("aten::convolution")
class Convolution(Rule):
    """Conv1d/2d/3d and their transposes."""

    repeatable = True
    makes_new = True
    passes_activation = True

    def __init__(
        self,
        call: Call,
        x: Operand,
        weight: Operand,
        bias: Operand | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        transposed: bool,
        output_padding: list[int],
        groups: int,
    ) -> None:
        super().__init__()
        whole_weight(call, weight, bias)
        where = call.move(x.samples, _batch)
        self.samples = (where,)
        self.weight = weight.kept() if x.active else None
        self.input_size = x.shape[2:]
        self.x = x.kept() if weight.active else None
        self.taps = (stride, padding, dilation, transposed, output_padding, groups)
        self.geometry = _geometry(
            weight.shape[2:],
            (tuple(stride), tuple(padding), tuple(dilation), tuple(output_padding)),
            groups,
            transposed,
        )
        if where is None:
            if weight.active or x.active:
                raise Unsupported("a convolution of nothing but parameters has no rule")
            return
        if weight.active:
            assert self.x is not None
            self.uses[1] = _convolution(weight, self.x, self.geometry, where)
        if bias is not None and bias.active:
            self.uses[2] = ScaleUse(
                bias.shape, where, along=(*bias.shape, *(1,) * len(self.input_size))
            )

    def pull(self, s: Tensor, index: int = 0) -> Tensor | None:
        if index or self.weight is None:
            return None
        layer = (self.weight.tensor, self.input_size, self.geometry)
        if skips_zeros(s, self.geometry):
            return ops.sparse_conv_input(s, *layer)
        value = ops.conv_input(s.flatten(0, 1), *layer)
        return value.view(*s.shape[:2], *value.shape[1:])

    def pull_diagonal(self, m: Tensor, index: int = 0) -> Tensor | None:
        return None if index else self._diagonal(m)

    def diagonal_through(
        self, m: Sequence[Tensor | None], wanted: Sequence[bool], before: Rule
    ) -> list[Tensor | None]:
        value = self._diagonal(only(m), before.slope()) if wanted[0] else None
        return [value, *[None] * (len(wanted) - 1)]

    def _diagonal(self, m: Tensor, slope: Slope | None = None) -> Tensor | None:
        """At x, or at the operand of an activation with this slope that made x."""
        if self.weight is None:
            return None
        layer = (self.weight.tensor, self.input_size, self.geometry)
        if slope is None:
            return ops.squared_conv_input(m, *layer)
        known = {"z": slope.z, "activation": slope.activation, "slope": slope.slope}
        return ops.squared_conv_input(m, *layer, **known)

    def variance(
        self, x: Mapping[int, Tensor], weights: Mapping[int, Tensor], before: Rule | None
    ) -> Tensor | None:
        terms: list[Tensor] = []
        if 0 in x and self.weight is not None:
            v = x[0] if before is None else before.slope().times_square(x[0])
            terms.append(torch.convolution(v, self.weight.tensor.square(), None, *self.taps))
        if 1 in weights and self.x is not None:
            terms.append(torch.convolution(self.x.tensor.square(), weights[1], None, *self.taps))
        if not terms:
            return None
        if 2 in weights:
            terms.append(weights[2].reshape(-1, *(1,) * len(self.input_size)))
        return sum(terms[1:], terms[0])


def linear_matrix(rule: Rule) -> Tensor | None:
    """W [O, I] of a rule for x -> x Wᵀ with samples in the rows of x; None for any other rule."""
    if isinstance(rule, Linear):
        return rule.matrix.tensor if rule.flat and rule.matrix else None
    product = rule.product if isinstance(rule, AffineProduct) else rule
    if not isinstance(product, MatrixProduct) or not product.rows_only or product.b is None:
        return None
    return product.b.tensor.mT


def _rows(samples: Samples, dim: int) -> Samples:
    """Samples of the free dimension of a matrix product."""
    if samples.dim != dim:
        raise MixesSamples("it sums over a dimension that holds samples")
    return samples


def _batch(samples: Samples) -> Samples:
    if samples.dim != 0:
        raise MixesSamples(f"a convolution's samples must be in dimension 0, not {samples.dim}")
    return samples


def _positions(tensor: Tensor, samples: Samples, leading: int) -> Tensor:
    """[L.., *, F] with samples in any dimension but the last, as [L.., N, T, F]."""
    if samples.count == 1:
        return tensor.reshape(*tensor.shape[:leading], 1, -1, tensor.shape[-1])
    if tensor.dim() == leading + 2 and samples.outer == samples.inner == 1 and samples.dim == 0:
        return tensor.unsqueeze(leading + 1)
    return samples.split(tensor, leading).flatten(leading + 1, -2)


def _linear(weight: Operand, data: Operand, where: Samples, data_first: bool) -> WeightUse:
    """Use of a weight in ``data @ weight``, or in ``weight @ data``."""
    x, rows = data.kept(), where if data_first else where.at(0)

    def transposed(tensor: Tensor) -> Tensor:
        return tensor if data_first else tensor.mT

    return WeightUse(
        weight.shape,
        LINEAR,
        lambda: _positions(transposed(x.tensor), rows, 0),
        lambda s: _positions(transposed(s), rows, 1),
        flipped=data_first,
    )


def _batched(weight: Operand, data: Operand, where: Samples, data_first: bool) -> Use:
    """Use of weights [B, I, O] in a batched product: one for all samples, or some for each."""
    x = data.kept()
    dim = 1 if data_first else 2

    def transposed(tensor: Tensor) -> Tensor:
        return tensor if data_first else tensor.mT

    if weight.shape[0] == 1 and (where.count == 1 or where.dim == dim):
        rows = where.at(0)
        return WeightUse(
            weight.shape,
            LINEAR,
            lambda: _positions(transposed(x.tensor)[0], rows, 0),
            lambda s: _positions(transposed(s)[:, 0], rows, 1),
            flipped=data_first,
        )
    if where.dim == dim:
        rows = where.at(1)
        return ProductUse(
            weight.shape,
            lambda: rows.split(transposed(x.tensor)).flatten(2, 3),
            lambda s: rows.split(transposed(s), 1).flatten(3, 4),
            flipped=not data_first,
        )

    def gradient(s: Tensor) -> Tensor:
        return x.tensor.mT @ s if data_first else s @ x.tensor.mT

    def squares(m: Tensor) -> Tensor:
        square = x.tensor.square().mT
        return square @ m if data_first else m @ square

    return OwnEntriesUse(weight.shape, where, gradient, squares)


def _differ(*operands: Operand) -> None:
    """A diagonal through a product of a tensor with itself needs both at once."""
    active = [id(operand.tensor) for operand in operands if operand.active]
    if len(set(active)) < len(active):
        raise Unsupported("a product of a tensor with itself")


def _convolution(weight: Operand, x: Kept, geometry: Geometry, where: Samples) -> WeightUse:
    """Use of a convolution's weight; several images a sample are one more position dimension."""
    if where.outer == where.inner == 1:
        return WeightUse(weight.shape, geometry, lambda: x.tensor, lambda s: s)
    if len(geometry.kernel_size) == 3:
        raise Unsupported("a Conv3d over several volumes a sample has no rule")
    wide = Geometry(
        (1, *geometry.kernel_size),
        (1, *geometry.stride),
        ((0, 0), *geometry.padding),
        (1, *geometry.dilation),
        geometry.groups,
        geometry.transposed,
        "zeros",
        (0, *geometry.output_padding),
    )

    def images(tensor: Tensor, leading: int) -> Tensor:
        parts = where.split(tensor, leading).flatten(leading + 1, leading + 2)
        return parts.movedim(leading + 1, leading + 2)

    return WeightUse(weight.shape, wide, lambda: images(x.tensor, 0), lambda s: images(s, 1))
