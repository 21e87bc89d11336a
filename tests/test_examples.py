"""The examples run, and what they print about their accuracy is small."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_example_agrees_with_autograd(example: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import runpy; runpy.run_path({str(example)!r}, None, '__main__')"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"difference from autograd: (\S+)", done.stdout)
    assert found, done.stdout
    assert float(found.group(1)) < 1e-5
