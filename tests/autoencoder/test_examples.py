"""The examples run on their own data, print a table and the time, and save table and figure."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "autoencoders"
SHARED = ("data", "models", "networks", "report")
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)


@pytest.fixture
def beside() -> Iterator[None]:
    """The folder's modules can be imported, and are forgotten afterwards."""
    before = set(sys.modules)
    threads = torch.get_num_threads()
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))
    torch.set_num_threads(threads)
    for name in (*SHARED, *EXAMPLES):
        if name not in before:
            sys.modules.pop(name, None)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(
    example: str, beside: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    importlib.import_module(example).main(["--quick", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "took" in printed
    table = (tmp_path / f"{example}.md").read_text()
    assert table.strip() in printed
    assert "nan" not in table
    assert (tmp_path / f"{example}.png").read_bytes().startswith(b"\x89PNG")
