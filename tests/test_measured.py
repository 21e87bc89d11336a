"""The commands that write measured documents."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks.networks import NetworkSize


@pytest.mark.parametrize("name", ["choices", "profile", "propagated"])
def test_documents_are_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    size = NetworkSize("tiny-mlp-ae", 4, 6)
    monkeypatch.setattr(module, "SIZES", [size])
    if name == "profile":
        monkeypatch.setattr(module, "least", lambda call: (call(), 1.0)[1])
    if name == "propagated":
        monkeypatch.setattr(module, "least", lambda call: 1.0)
    out = tmp_path / "made.md"
    module.main(["--out", str(out), *(["--seconds", "0"] if name == "choices" else [])])
    text = out.read_text()
    assert f"python -m benchmarks.{name}" in text and f"| {size} |" in text
