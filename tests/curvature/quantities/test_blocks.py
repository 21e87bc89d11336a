"""Blocks of the Gauss-Newton matrix: stored transposes and refusals; test_support has values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lapkernels as lk
from tests.curvature import oracle
from tests.curvature.check import close, made
from tests.curvature.zoo import ZOO


def test_neurons_of_a_stored_transpose() -> None:
    model, x, y = made(ZOO["matrix-product"])
    found = lk.blocks(model, (x, y), by="neuron")["w"]
    block = oracle.block(oracle.ggn(model, x, y), model, "w").reshape(3, 4, 3, 4)
    close(found, torch.einsum("iojo->oij", block))


def test_a_parameter_that_is_not_used_has_zeros() -> None:
    model, x, y = made(ZOO["parameter-not-used"])
    for by in ("layer", "parameter", "kernel", "neuron"):
        found = lk.blocks(model, (x, y), by=by)
        empty = [name for key in found if not found[key].any() for name in found.names[key]]
        assert empty == ["idle"]


def test_refusals() -> None:
    model, x, y = made(ZOO["conv2d-groups"])
    with pytest.raises(lk.Refused, match=r"take .* KiB, more than limit=10 KiB.*\[54, 54\]"):
        lk.blocks(nn.Linear(8, 6).double(), torch.ones(1, 8).double(), limit=10 << 10)
    with pytest.raises(lk.Refused, match=r"\[6, 8, 8\]"):
        lk.blocks(nn.Linear(8, 6).double(), torch.ones(1, 8).double(), by="neuron", limit=100)
    with pytest.raises(ValueError, match="by='row' must be one of"):
        lk.blocks(model, x, by="row")  # pyright: ignore[reportArgumentType]
    model, x, y = made(ZOO["autoencoder-tied"])
    with pytest.raises(lk.Refused, match="encoder.weight .* neurons are not defined"):
        lk.blocks(model, x, by="neuron")
