"""The command line: what it prints, its JSON, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch

import lapkernels
from lapkernels import bench, info
from lapkernels.__main__ import COMMANDS, main
from lapkernels.kernels import OpReport
from lapkernels.ops import OPS
from tests.programs import python


def test_as_a_process() -> None:
    wrong = python("-m", "lapkernels", "dance")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "invalid choice: 'dance'" in wrong.stderr
    failing = python("-m", "lapkernels", "info", "--json", "--require", "nothing")
    assert failing.returncode == 1
    assert "the backend 'nothing' does not serve" in failing.stderr
    assert set(json.loads(failing.stdout)) == {"facts", "ops", "choices"}


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in COMMANDS) and "Exit codes: 0" in printed
    for command in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert stopped.value.code == 0
        printed = capsys.readouterr().out
        assert f"usage: python -m lapkernels {command}" in printed and "--json" in printed
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == lapkernels.__version__


@pytest.mark.parametrize(
    "arguments",
    [[], ["info", "--nothing"], ["bench", "--batch", "0"], ["bench", "--network", "none"]],
    ids=str,
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["torch"].startswith(torch.__version__)
    assert {row["op"] for row in found["ops"]} == set(OPS)
    assert all(value in text for value in found["facts"].values())


def test_required_backend() -> None:
    rows = [
        OpReport("a", "cpu", "reference", {}),
        OpReport("a", "cuda", "cuda", {}),
        OpReport("b", "cuda", "cuda", {}),
        OpReport("b", "cpu", "reference", {}),
    ]
    info.check_served(rows, "cuda")
    with pytest.raises(RuntimeError, match="'cuda' does not serve b$"):
        info.check_served(rows[:2] + rows[3:], "cuda")


def test_bench(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    options = ["--network", "dense", "--batch", "2", "--rounds", "1", "--threads", "1"]
    assert main(["bench", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["network"], found["batch"], found["threads"]) == ("dense", 2, 1)
    assert torch.get_num_threads() == threads
    unit = found["rows"][0]
    assert unit["quantity"] == "forward and backward" and unit["passes"] == 1
    for row in found["rows"]:
        assert row["seconds"] > 0
        assert row["passes"] == pytest.approx(row["seconds"] / unit["seconds"])
    lines = bench.table([bench.Row(**row) for row in found["rows"]])
    assert len(lines) == len(found["rows"]) + 1 and len({len(line) for line in lines}) == 1


def test_bench_keeps_the_minimum() -> None:
    calls: list[str] = []
    rows = bench.measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert [row.quantity for row in rows] == ["a", "b"]
    # Two calls before, then interleaved rounds.
    assert calls == ["a", "a", "b", "b", "a", "b", "a", "b", "a", "b"]


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--out", str(tmp_path / "out"), "--epochs", "1", "--images", "20", "--batch", "1"]
    assert main(["demo", "--json", *options]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "out" / "results.json").read_text())
    assert "relative error" in printed.err
    numpy.savez(tmp_path / "other.npz", y=numpy.zeros(3))
    assert main(["demo", "--data", str(tmp_path / "other.npz")]) == 1
    assert "lacks ['x_test', 'x_train']" in capsys.readouterr().err
