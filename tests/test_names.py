"""The names of the package: all there, and what they need is loaded when one is asked for."""

from __future__ import annotations

import pytest

import lapkernels as lk
from tests.programs import printed


@pytest.mark.parametrize("name", lk.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(lk, name) is not None
    assert name in dir(lk)


@pytest.mark.parametrize("name", lk._PACKAGES)
def test_packages_are_there(name: str) -> None:
    assert getattr(lk, name).__name__ == f"lapkernels.{name}"
    assert name in dir(lk)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'hessain'"):
        lk.hessain  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_import_loads_little() -> None:
    program = """
import sys, torch, lapkernels
def loaded(): return {n.split(".")[1] for n in sys.modules if n.startswith("lapkernels.")}
assert {"ops", "likelihoods"} <= loaded() <= {"ops", "likelihoods", "kernels", "_native"}, loaded()
torch.ops.lapkernels.gaussian_kl
lapkernels.diag
assert "curvature" in loaded() and not {"laplace", "autoencoder"} & loaded(), loaded()
"""
    printed("-c", program)
