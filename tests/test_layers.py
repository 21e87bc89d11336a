"""The layers of the package and of its engine: no module imports from a layer above its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lapkernels

# Every part that no level names: one file an op, or a family of rules.
OTHERS = frozenset({"*"})

# From the top down, for each package that has layers. `__init__` is the package's own front.
LAYERS: dict[str, tuple[frozenset[str], ...]] = {
    "lapkernels": (
        frozenset({"__init__", "__main__", "info", "demo", "bench"}),
        frozenset({"integrations"}),
        frozenset({"laplace", "variational", "autoencoder", "l2m"}),
        frozenset({"curvature"}),
        frozenset({"rules", "likelihoods"}),
        frozenset({"ops"}),
        frozenset({"kernels"}),
    ),
    "lapkernels.curvature": (
        frozenset({"__init__"}),
        frozenset({"quantities"}),
        frozenset({"results"}),
        frozenset({"passes"}),
        frozenset({"backward", "by_autograd"}),
        frozenset({"recording"}),
        frozenset({"data"}),
        frozenset({"errors"}),
    ),
    "lapkernels.rules": (
        frozenset({"__init__"}),
        frozenset({"windows"}),
        OTHERS,
        frozenset({"base"}),
    ),
    "lapkernels.ops": (
        frozenset({"__init__"}),
        OTHERS,
        frozenset({"base"}),
        frozenset({"serving"}),
    ),
}


def depth(part: str, name: str) -> int:
    """How far down a module or subpackage of a package lies; the front is 0."""
    levels = LAYERS[name]
    for wanted in (part, *OTHERS):
        for level, names in enumerate(levels):
            if wanted in names:
                return level
    raise AssertionError(f"{part} belongs to no layer: add it to LAYERS")


def parts_of(package: Path) -> set[str]:
    """The modules and subpackages directly inside a package."""
    return {path.parent.name for path in package.glob("*/*.py")} | {
        path.stem for path in package.glob("*.py")
    }


def imported(source: Path, package: Path, name: str) -> Iterator[tuple[int, str]]:
    """Line and part of each import from the package, also inside functions and relative ones."""
    parts, whole = parts_of(package), name.split(".")
    own = [*whole, *source.relative_to(package).with_suffix("").parts]
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # One dot is the folder of the file itself.
            folder = own[: len(own) - node.level] if node.level else []
            base = folder + (node.module.split(".") if node.module else [])
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for target in targets:
            if target[: len(whole)] == whole:
                rest = target[len(whole) :]
                # A name that is no part of the package comes out of its __init__.
                yield node.lineno, rest[0] if rest and rest[0] in parts else "__init__"


def violations(package: Path, name: str) -> list[str]:
    """One line for each import of a package folder that points upwards."""
    found = []
    for source in sorted(package.rglob("*.py")):
        own = source.relative_to(package).parts[0].removesuffix(".py")
        for line, part in imported(source, package, name):
            if depth(part, name) < depth(own, name):
                found.append(f"{source.relative_to(package)}:{line} ({own}) imports {part}")
    return found


@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_imports_one_above_it(name: str) -> None:
    package = Path(lapkernels.__file__).parent.joinpath(*name.split(".")[1:])
    checked = [source for source in package.rglob("*.py") if any(imported(source, package, name))]
    assert checked, "no file of the package imports from the package: nothing was checked"
    assert violations(package, name) == []


@pytest.mark.parametrize(
    ("statement", "target"),
    [
        ("import toy.curvature", "curvature"),
        ("import toy.curvature.diag as d", "curvature"),
        ("from toy import curvature", "curvature"),
        ("from toy.curvature import diag", "curvature"),
        ("from ..curvature.diag import f", "curvature"),
        ("from .. import curvature", "curvature"),
        ("def f():\n    from toy import curvature", "curvature"),
        ("import toy", "__init__"),
        ("from toy import use_backend", "__init__"),
    ],
)
def test_checker_reports_an_upward_import(tmp_path: Path, statement: str, target: str) -> None:
    package = toy_package(tmp_path)
    (package / "ops" / "conv.py").write_text(statement + "\n")
    (problem,) = violations(package, "toy")
    assert problem.startswith("ops/conv.py:")
    assert problem.endswith(f"imports {target}")


@pytest.mark.parametrize(
    "statement",
    [
        "import torch, os.path",
        "from toy.kernels import compiled",
        "from toy import kernels",
        "from . import geometry",
        "from .geometry import Geometry",
        "from ..kernels import compiled",
        "from curvature import diag",
    ],
)
def test_checker_allows_imports_downwards_and_sideways(tmp_path: Path, statement: str) -> None:
    package = toy_package(tmp_path)
    (package / "ops" / "conv.py").write_text(statement + "\n")
    assert violations(package, "toy") == []


def test_checker_refuses_a_module_of_no_layer(tmp_path: Path) -> None:
    package = toy_package(tmp_path)
    (package / "misc.py").write_text("from toy import kernels\n")
    with pytest.raises(AssertionError, match="misc belongs to no layer"):
        violations(package, "toy")


@pytest.fixture(autouse=True)
def toy_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAYERS, "toy", LAYERS["lapkernels"])


def toy_package(folder: Path) -> Path:
    package = folder / "toy"
    for part in ("curvature", "ops", "kernels"):
        (package / part).mkdir(parents=True)
        (package / part / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from toy import ops\n")
    (package / "ops" / "geometry.py").write_text("")
    return package
