"""The examples run, and what they print about their accuracy is small."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# As a script, which finds the modules beside it, but with the package of this folder.
RUN = (
    "import runpy, sys; del sys.argv[0]; sys.path.insert(1, 'examples');"
    "runpy.run_path(sys.argv[0], None, '__main__')"
)

# The other files of the folder are modules that examples share.
EXAMPLES = {
    path.stem: path
    for path in sorted((ROOT / "examples").glob("*.py"))
    if path.stem not in ("common", "hamiltonian", "residual", "scenes")
}
# Examples that compare with autograd; the others have --quick and --out.
COMPARING = ("one_layer", "whole_model")
# Packages that an example needs besides those of the tests.
NEEDED = {
    "cubic_regression": "numpyro",
    "l2m_cubic": "numpyro",
    "laplace_torch_backend": "laplace",
}


def output(example: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(EXAMPLES[example]), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", COMPARING)
def test_example_agrees_with_autograd(example: str) -> None:
    printed = output(example)
    found = re.search(r"difference from autograd: (\S+)", printed)
    assert found, printed
    assert float(found.group(1)) < 1e-5


@pytest.mark.parametrize("example", [name for name in EXAMPLES if name not in COMPARING])
def test_example_saves_its_figure(example: str, tmp_path: Path) -> None:
    if example in NEEDED:
        pytest.importorskip(NEEDED[example])
    output(example, "--quick", "--out", str(tmp_path))
    figures = list(tmp_path.glob(f"{example}*.png"))
    assert figures and all(f.read_bytes().startswith(b"\x89PNG") for f in figures)
