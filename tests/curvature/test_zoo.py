"""The zoo itself: small, reproducible, samples apart, and something to differentiate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.curvature import oracle, refusals
from tests.curvature.zoo import NO_SECOND_DERIVATIVE, TABLES, ZOO, Network, params

RANK = {"vector": (1, 2), "sequence": (3,), "image": (4,)}


def test_ids_are_unique() -> None:
    assert len(ZOO) == sum(len(table.NETWORKS) for table in TABLES)


@pytest.mark.parametrize("network", params())
def test_network(network: Network) -> None:
    model, x = network.make()
    assert sum(p.numel() for p in model.parameters()) < 400
    f = oracle.call(model, x, network.output)
    assert f.dim() in RANK[network.kind] and f.shape[0] == network.samples and f.isfinite().all()
    j, single = oracle.jacobians(model, x, network.output)
    torch.testing.assert_close(f.detach(), single, msg="a sample's output depends on others")
    assert any(rows.any() for rows in j.values())
    assert all(rows.isfinite().all() for rows in j.values())


@pytest.mark.parametrize("network", params("sizes", "several-outputs", "product"))
def test_making_twice_gives_the_same(network: Network) -> None:
    def tensors(dtype: torch.dtype) -> list[Tensor]:
        model, x = network.make(dtype)
        inputs = [x] if isinstance(x, Tensor) else list(x.values() if isinstance(x, dict) else x)
        return [*model.parameters(), *inputs]

    for first, second in zip(tensors(torch.float32), tensors(torch.float64), strict=True):
        torch.testing.assert_close(first.double(), second, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted(NO_SECOND_DERIVATIVE))
def test_torch_has_no_second_derivative(name: str) -> None:
    model, x = ZOO[name].make(samples=1)
    y = torch.zeros_like(oracle.call(model, x))
    with pytest.raises(RuntimeError, match="not implemented"):
        oracle.hessian(model, x, y)


@pytest.mark.parametrize("case", refusals.params("handle"))
def test_what_must_be_handled_has_an_answer(case: refusals.Case) -> None:
    model, x = case.make()
    j, f = oracle.jacobians(model, x)
    torch.testing.assert_close(oracle.call(model, x).detach(), f)
    assert any(rows.any() for rows in j.values())
