"""The examples run on their own data, print a table, and save table and figure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples import quick

SCRIPTS = quick.scripts()
DRAWING = [name for name in SCRIPTS if name not in quick.COMPARING]


def made(name: str) -> tuple[Path, str]:
    if package := quick.missing(name):
        pytest.skip(f"{package} is not installed")
    folder = quick.run(name)
    return folder, (folder / "printed.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", quick.COMPARING)
def test_example_agrees_with_autograd(name: str) -> None:
    printed = made(name)[1]
    found = re.search(r"difference from autograd: (\S+)", printed)
    assert found, printed
    assert float(found.group(1)) < 1e-5


@pytest.mark.parametrize("name", DRAWING)
def test_example_saves_its_figure(name: str) -> None:
    folder, printed = made(name)
    figures = list(folder.glob(f"{name}*.png"))
    assert figures and all(f.read_bytes().startswith(b"\x89PNG") for f in figures)
    assert printed.strip() and "nan" not in printed.split()


@pytest.mark.parametrize("name", [n for n in DRAWING if SCRIPTS[n].parent.name == "autoencoders"])
def test_table_is_kept_and_time_is_told(name: str) -> None:
    folder, printed = made(name)
    assert (folder / f"{name}.md").read_text().strip() in printed
    assert "took" in printed


def test_every_script_of_the_folder_is_run() -> None:
    assert {"cubic_regression", "whole_model", "novelty"} <= set(SCRIPTS)
    assert not {"common", "networks", "quick"} & set(SCRIPTS)


def test_failure_of_an_example_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('no such thing')\n")
    monkeypatch.setattr(quick, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(quick, "scripts", lambda: {"broken": broken})
    with pytest.raises(RuntimeError, match=r"the example broken failed[\s\S]*no such thing"):
        quick.run("broken")
    assert not (tmp_path / "kept" / "broken" / "printed.txt").exists()
