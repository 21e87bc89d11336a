"""Tiny networks, each with fewer than 400 parameters, grouped by what they test.

@pytest.mark.parametrize("network", params("conv", "norm"))
def test(network): model, x = network.make(torch.float32)
"""

from __future__ import annotations

from _pytest.mark import ParameterSet
from pytest import param

from tests.curvature.zoo import graphs, layers, outputs, sequences, stateless, weights
from tests.curvature.zoo.network import Net, Network

__all__ = ["GROUPS", "NO_SECOND_DERIVATIVE", "TABLES", "ZOO", "Net", "Network", "params"]

TABLES = (layers, stateless, graphs, weights, sequences, outputs)
ZOO: dict[str, Network] = {network.id: network for table in TABLES for network in table.NETWORKS}
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(network.group for network in ZOO.values()))
# Ids of networks that torch itself cannot differentiate twice.
NO_SECOND_DERIVATIVE = {
    "embedding-bag-mean",
    "embedding-bag-sum",
    "activation-hardsigmoid",
    "shape-distance",
    "prototypes",
}


def params(*groups: str) -> list[ParameterSet]:
    """Entries of these groups, or all, for `pytest.mark.parametrize`."""
    unknown = set(groups) - set(GROUPS)
    assert not unknown, f"no such group: {unknown}"
    return [param(n, id=n.id) for n in ZOO.values() if not groups or n.group in groups]
