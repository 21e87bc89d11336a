"""The ops on columns that share their zeros, by the dense CUDA kernels that serve them."""

from __future__ import annotations

import torch

from lapkernels import ops, use_backend
from tests.cuda.conftest import Target
from tests.ops.compare import assert_same
from tests.ops.sparse import FEW, RANDOM, Case, over


@over([*FEW, *RANDOM[:4]])
def test_squared_sum(case: Case, target: Target) -> None:
    s, x, _ = case.draw(torch.float32, integers=True)
    with use_backend("reference"):
        wanted = ops.jacobian_squared_sum(s.double(), x.double(), case.geometry)
    found = ops.sparse_squared_sum(target.to(s), target.to(x), case.geometry).cpu()
    assert_same(found, wanted, empty=not wanted.any())


@over([*FEW, *RANDOM[:4]])
def test_conv_input(case: Case, target: Target) -> None:
    s, _, weight = case.draw(torch.float32, integers=True)
    with use_backend("reference"):
        wanted = ops.sparse_conv_input(s.double(), weight.double(), case.size, case.geometry)
    found = ops.sparse_conv_input(target.to(s), target.to(weight), case.size, case.geometry).cpu()
    assert_same(found, wanted, empty=not wanted.any())
