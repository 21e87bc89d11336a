"""The pages: every link leads somewhere, and every path of the sources that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
