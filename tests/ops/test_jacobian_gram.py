"""Properties of the joint predictive covariance; its values are checked in test_agreement."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lapkernels.ops import jacobian_gram
from tests.ops.cases import FEW, Layer, draw, over
from tests.ops.compare import assert_same


@over(FEW)
def test_is_a_covariance(layer: Layer, dtype: torch.dtype, backend: str) -> None:
    data = draw(replace(layer, columns=9), dtype)
    gram = jacobian_gram(data.s, data.x, data.variance, layer.geometry)
    assert gram.shape == (layer.samples, 9, 9)
    if backend == "cpp":  # which computes one half and mirrors it
        assert_same(gram, gram.mT)
    values = torch.linalg.eigvalsh(gram.double())
    # The matrix of each sample is off by its rounding, which its trace bounds.
    steps = 2 * layer.positions + data.weight.numel()
    assert (values[:, 0] >= -torch.finfo(dtype).eps * 9 * steps * values[:, -1]).all()


@over(FEW)
@pytest.mark.usefixtures("backend")
def test_is_bilinear_in_the_columns(layer: Layer) -> None:
    data = draw(replace(layer, columns=3), torch.float32, integers=True)
    mix = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, -1.0]])
    mixed = torch.einsum("wv,v...->w...", mix, data.s)
    arguments = (data.x, data.variance, layer.geometry)
    wanted = mix @ jacobian_gram(data.s, *arguments) @ mix.T
    assert_same(jacobian_gram(mixed, *arguments), wanted)


@pytest.mark.parametrize("columns", [*range(1, 14), 17, 40])
@over([FEW[1], FEW[3], FEW[6]])
@pytest.mark.usefixtures("backend")
def test_any_number_of_columns(layer: Layer, columns: int) -> None:
    data = draw(replace(layer, columns=columns, samples=2), torch.float32, integers=True)
    found = jacobian_gram(data.s, data.x, data.variance, layer.geometry)
    single = [
        jacobian_gram(torch.stack([a, b]), data.x, data.variance, layer.geometry)[:, 0, 1]
        for a in data.s
        for b in data.s[-2:]
    ]
    wanted = torch.stack(single, 1).reshape(2, columns, -1)
    assert_same(found[..., -2:], wanted)
