"""Every example run with --quick, for the tests and for the gallery of the docs.

    python examples/quick.py [NAME ...]

What an example prints and draws is kept in build/examples/NAME, and made anew when an example or
the package has changed since.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "examples"
# Packages that an example needs besides those of the tests.
NEEDED = {
    "cubic_regression": "numpyro",
    "l2m_cubic": "numpyro",
    "laplace_torch_backend": "laplace",
}
# Examples of a second, which compare with autograd and take no options.
COMPARING = ("one_layer", "whole_model")
# As a script, which finds the modules beside it, but with the package of this folder.
RUN = (
    "import runpy, sys; from pathlib import Path; del sys.argv[0];"
    "sys.path.insert(1, str(Path(sys.argv[0]).parent));"
    "runpy.run_path(sys.argv[0], None, '__main__')"
)


def scripts() -> dict[str, Path]:
    """The files that do something of themselves; the others are modules that examples share."""
    paths = sorted(path for path in (ROOT / "examples").glob("**/*.py") if path != Path(__file__))
    return {path.stem: path for path in paths if _runs(ast.parse(path.read_text()))}


def missing(name: str) -> str | None:
    """The package that an example needs and that is not installed."""
    needed = NEEDED.get(name)
    return needed if needed and find_spec(needed) is None else None


def run(name: str) -> Path:
    """The folder with what an example has made: ``printed.txt``, tables and figures."""
    out = KEPT / name
    printed = out / "printed.txt"
    if printed.exists() and printed.stat().st_mtime > _changed():
        return out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    options = () if name in COMPARING else ("--quick", "--out", str(out))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(scripts()[name]), *options],
        cwd=ROOT,
        env={"OMP_NUM_THREADS": "1", **os.environ},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"the example {name} failed:\n{done.stderr}")
    printed.write_text(done.stdout, encoding="utf-8")
    return out


def run_all(names: list[str]) -> dict[str, Path]:
    """The folders of several examples, two of which run at a time."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(run, names), strict=True))


def _changed() -> float:
    """When an example or the package last changed."""
    files = [*(ROOT / "examples").glob("**/*.py"), *(ROOT / "lapkernels").glob("**/*.py")]
    files += (ROOT / "lapkernels").glob("*.so")
    return max(path.stat().st_mtime for path in files)


def _runs(tree: ast.Module) -> bool:
    return any(
        (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and "sys.path" not in ast.unparse(node)
        )
        or (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
        for node in tree.body
    )


if __name__ == "__main__":
    for example, folder in run_all(sys.argv[1:] or list(scripts())).items():
        print(f"{example}: {folder}")
