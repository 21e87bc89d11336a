"""The pages: links lead somewhere, paths of the sources exist, and blocks of python run."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)\s]*)?\)")
SOURCE = re.compile(r"`((?:lapkernels|csrc|tests|benchmarks|examples|docs)/[\w./]*)`")
# Written by runs, and not kept.
MADE = ("benchmarks/results", "docs/gallery")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    missing += [
        path
        for path in SOURCE.findall(text)
        if not path.startswith(MADE) and not (ROOT / path).exists()
    ]
    assert not missing


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.S)


def test_readme_runs_in_order() -> None:
    space: dict[str, Any] = {}
    for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")):
        exec(block, space)
    model, x = space["model"], space["x"]
    assert {name: h.shape for name, h in space["d"].items()} == {
        name: p.shape for name, p in model.named_parameters()
    }
    found = space["la"].predict(x).probabilities
    torch.testing.assert_close(found.sum(-1), torch.ones(len(x)))


PACKAGES = {"laplace-torch": "laplace", "BackPACK": "backpack", "curvlinops": "curvlinops"}


@pytest.mark.parametrize("section", PACKAGES)
def test_pairs_of_coming_from_agree(section: str) -> None:
    """Every pair of blocks, another package's and ours, gives the same numbers."""
    pytest.importorskip(PACKAGES[section], reason=f"{section} is not installed")
    space: dict[str, Any] = {}
    text = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    exec(blocks(text)[0], space)  # the set-up that all share
    found = blocks(text.partition(f"## {section}\n")[2].partition("\n## ")[0])
    assert found and len(found) % 2 == 0
    for theirs, ours in zip(found[::2], found[1::2], strict=True):
        space.pop("theirs", None)
        space.pop("ours", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(theirs, space)
            exec(ours, space)
        a, b = space["theirs"].detach(), space["ours"].detach()
        torch.testing.assert_close(b.to(a), a, rtol=1e-6, atol=1e-8)
