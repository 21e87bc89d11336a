"""The package as installed: the command line, and life without the compiled library."""

from __future__ import annotations

import subprocess

import pytest

from lapkernels.kernels import NATIVE
from lapkernels.ops import OPS
from tests.programs import python

# Calls an op twice, so that a second warning would show; with ones its value is O * I = 20.
FIRST_USE = """
import warnings
with warnings.catch_warnings(record=True) as at_import:
    warnings.simplefilter("always")
    import lapkernels as lk
    import torch
assert not [w for w in at_import if "lapkernels" in str(w.message)], "warned at import"
s, x, variance = torch.ones(2, 3, 7, 4), torch.ones(3, 7, 5), torch.ones(4, 5)
with warnings.catch_warnings(record=True) as at_use:
    warnings.simplefilter("always")
    for _ in range(2):
        gram = lk.ops.jacobian_gram(s, x, variance, lk.ops.Geometry())
        assert torch.equal(gram, torch.full((3, 2, 2), 980.0)), gram
caught = [str(w.message) for w in at_use if "reference backend" in str(w.message)]
print(len(caught), "warnings", *caught)
"""


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python(*arguments, fresh=True, **environment)


@pytest.mark.parametrize("hidden", ["0", "1"])
def test_info_lists_every_op(hidden: str) -> None:
    result = run_python("-m", "lapkernels", "info", LAPKERNELS_NO_NATIVE=hidden)
    assert result.returncode == 0, result.stderr
    # The first line of each name: the tables of choices below name ops too.
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    rows = {line.split()[0]: line for line in reversed(lines)}
    assert OPS and set(OPS) <= set(rows)
    for fact in ("lapkernels", "torch", "machine", "SIMD", "build"):
        assert fact in rows
    assert "both tensors" in result.stdout and "at most 4 columns" in result.stdout
    if hidden == "1":
        assert all("LAPKERNELS_NO_NATIVE is set" in rows[op] for op in OPS)
    elif NATIVE.path is not None:
        assert rows["SIMD"].split()[-1] in {"avx512", "avx2", "baseline"}


def test_without_the_library_warns_once_at_first_use() -> None:
    result = run_python("-c", FIRST_USE, LAPKERNELS_NO_NATIVE="1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("1 warnings")
    assert "LAPKERNELS_NO_NATIVE is set" in result.stdout
    assert "pip install" in result.stdout


def test_reference_by_choice_does_not_warn() -> None:
    result = run_python("-c", FIRST_USE, LAPKERNELS_NO_NATIVE="1", LAPKERNELS_BACKEND="reference")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("0 warnings")


def test_unknown_backend_in_the_environment_is_refused() -> None:
    result = run_python("-c", "import lapkernels", LAPKERNELS_BACKEND="fortran")
    assert result.returncode != 0
    assert "LAPKERNELS_BACKEND: unknown backend 'fortran'" in result.stderr
    assert "auto, reference, cpp" in result.stderr
