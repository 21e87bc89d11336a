"""Peak memory: twice the activations and twice the parameters, whatever the number of columns."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from lapkernels.demo.memory import PROC
from tests.curvature.memory import CASES, MIB, SLACK, Server

# Each function on the network where it comes closest to its bound, and each network.
QUICK = (
    "images 10 diag exact",
    "images 10 diag mixed",
    "images 10 diag hessian",
    "images 10 kron_corrected mc",
    "images 10 blocks kernel",
    "images 10 full",
    "sequence 10 propagated_variance",
    "matrices 10 diag exact",
    "matrices 1000 diag exact",
    "matrices 10 kron mc",
    "matrices 10 ggn_product",
    "matrices 10 predictive_covariance",
    "tied 10 diag mc",
    "tied 10 diag exact autograd",
    "tied 10 predictive_variance",
    "sequence 10 diag exact autograd",
    "sequence 1000 diag exact",
    "sequence 10 diag mc",
    "sequence 10 diag approx",
    "sequence 10 kron exact",
    "sequence 10 predictive_variance",
    "matrix 128 low_rank to the end",
    "skips 10 ggn_product",
    "unet 1024 diag exact",
)

pytestmark = pytest.mark.skipif(
    not (PROC / "clear_refs").exists(), reason="the peak is read from Linux's /proc"
)

server = cache(Server.start)


@cache
def measured(name: str) -> dict[str, Any]:
    row = server().measure(name)
    if row["peak"] is None:
        pytest.skip("the peak cannot be reset here")
    return row


def assert_small(name: str) -> None:
    row = measured(name)
    told = {key: f"{row[key] / MIB:.0f} MiB" for key in ("peak", "bound", "activations", "result")}
    assert row["peak"] <= row["bound"] + SLACK, told


def test_the_sizes_are_as_meant() -> None:
    images, matrices = measured("images 10 diag exact"), measured("matrices 10 diag exact")
    assert images["activations"] > 40 * MIB and images["parameters"] < MIB
    assert matrices["activations"] < MIB and matrices["parameters"] > 30 * MIB


@pytest.mark.parametrize("name", QUICK)
def test_peak(name: str) -> None:
    assert_small(name)


def test_a_budget_lowers_the_peak() -> None:
    """One column at a time, and all eight behind the pooling together: seven images fewer."""
    least, generous = (measured(f"images 10 diag exact {x}") for x in ("least", "generous"))
    image = least["activations"] / 4  # of the four layers that make images
    assert generous["peak"] - least["peak"] > 7 * image - SLACK


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in CASES if n not in QUICK and "generous" not in n])
def test_peak_of_every_function(name: str) -> None:
    assert_small(name)
