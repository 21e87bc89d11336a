"""The page for users of other packages: every pair of blocks runs and gives the same numbers."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).parents[1] / "docs" / "coming_from.md"
PACKAGES = {"laplace-torch": "laplace", "BackPACK": "backpack", "curvlinops": "curvlinops"}


def blocks(section: str) -> list[str]:
    text = PAGE.read_text()
    part = text.partition(f"## {section}\n")[2].partition("\n## ")[0] if section else text
    return re.findall(r"```python\n(.*?)```", part, re.S)


@pytest.mark.parametrize("section", PACKAGES)
def test_pairs_agree(section: str) -> None:
    pytest.importorskip(PACKAGES[section], reason=f"{section} is not installed")
    space: dict[str, Any] = {}
    exec(blocks("")[0], space)  # the set-up that all share
    found = blocks(section)
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
