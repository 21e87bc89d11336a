"""The demo: its methods against autograd, and its command line from data to picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch

from lapkernels.demo import data, main


def test_demo_compares_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    out = tmp_path / "out"
    main(["--out", str(out), "--epochs", "1", "--images", "100", "--batch", "2"])
    rows = {row["method"]: row for row in json.loads((out / "results.json").read_text())}
    assert rows["exact"]["error"] < 1e-5
    # Estimates: wrong by their nature, but no further than this.
    assert rows["approx"]["error"] < 2
    assert rows["mc, 8 columns"]["error"] < 2
    assert torch.get_num_threads() == threads
    printed = capsys.readouterr().out
    assert "relative error" in printed
    pytest.importorskip("matplotlib")
    assert (out / "uncertainty.png").stat().st_size > 10_000


def test_demo_reads_a_file_of_larger_images(tmp_path: Path) -> None:
    images = numpy.random.default_rng(0).integers(0, 256, (20, 14, 14), dtype=numpy.uint8)
    numpy.savez(tmp_path / "images.npz", x_train=images, x_test=images)
    arguments = ["--data", str(tmp_path / "images.npz"), "--out", str(tmp_path / "out")]
    main([*arguments, "--epochs", "1"])
    rows = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {row["method"]: row["error"] < 1e-5 for row in rows}["exact"]


def test_drawn_digits_are_images() -> None:
    images = data.drawn_digits(50)
    assert images.shape == (50, 1, 8, 8)
    assert images.min() >= 0 and images.max() <= 1
    assert images.std(0).mean() > 0.05
