"""The README's first steps: every block of python runs as written, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

README = Path(__file__).parents[1] / "README.md"


def test_blocks_run_in_order() -> None:
    space: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    for block in blocks:
        exec(block, space)
    model, x = space["model"], space["x"]
    assert {name: h.shape for name, h in space["d"].items()} == {
        name: p.shape for name, p in model.named_parameters()
    }
    found = space["la"].predict(x).probabilities
    torch.testing.assert_close(found.sum(-1), torch.ones(len(x)))
