"""The whole curvature matrix: choices and refusals; test_support has its values."""

from __future__ import annotations

import pytest

import lapkernels as lk
from tests.curvature import oracle
from tests.curvature.check import close, made
from tests.curvature.zoo import ZOO


def test_chosen_parameters() -> None:
    model, x, y = made(ZOO["conv2d-stride"])
    names = ["0.bias", "3.weight"]
    wanted = oracle.layer_block(oracle.ggn(model, x, y), model, names)
    close(lk.full(model, (x, y), params=names).matrix, wanted)
    wanted = oracle.layer_block(oracle.hessian(model, x, y), model, names)
    close(lk.full(model, (x, y), method="hessian", params=names).matrix, wanted)


def test_refusals() -> None:
    model, x, _ = made(ZOO["linear"])
    with pytest.raises(lk.Refused, match=r"2 KiB, more than limit=1 KiB.*\[16, 16\]"):
        lk.full(model, x, limit=1024)
    with pytest.raises(ValueError, match="needs labels"):
        lk.full(model, x, method="hessian")
    with pytest.raises(ValueError, match="method='approx' must be one of"):
        lk.full(model, x, method="approx")  # pyright: ignore[reportArgumentType]
