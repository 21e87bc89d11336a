"""Programs of the project, run in its folder as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run(
    *command: str | Path, cwd: Path = ROOT, fresh: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """With changed environment variables; ``fresh`` leaves out the settings of the package."""
    kept = dict(os.environ)
    if fresh:
        kept = {name: value for name, value in kept.items() if not name.startswith("LAPKERNELS_")}
    return subprocess.run(
        [*map(str, command)], cwd=cwd, env=kept | environment, capture_output=True, text=True
    )


def python(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """This Python."""
    return run(sys.executable, *arguments, **options)


def printed(*arguments: str | Path, **environment: str) -> str:
    """What this Python prints with these arguments, which must not fail."""
    done = python(*arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout
