"""Memory that one call frees serves the next."""

from __future__ import annotations

import platform

import pytest

from tests.programs import printed

FAULTS = """
import resource, torch
import lapkernels as lk
{call}
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.ones(250_000) for _ in range(40)]
    del kept
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
LAYER = "torch.nn.Linear(1, 1)"
CALLS = [
    f"lk.diag({LAYER}, torch.ones(1, 1))",
    f"lk.kron({LAYER}, torch.ones(1, 1))",
    f"lk.VariationalLaplace({LAYER}, 'gaussian', 1, route='exact')",
]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep other amounts")
@pytest.mark.parametrize("call", CALLS)
def test_pages_are_used_again(call: str) -> None:
    """Forty tensors of a megabyte are 10,000 pages, which are not asked for anew."""
    assert int(printed("-c", FAULTS.format(call=call))) < 1_000
