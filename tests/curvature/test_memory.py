"""Peak memory: twice the activations and twice the parameters, whatever the number of columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from lapkernels.demo.memory import PROC
from tests.curvature.memory import ALLOCATOR, CASES

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
# The least budget that columns get, and what allocator and newly touched code may take.
SLACK = 16 * MIB + 6 * MIB
QUICK = (
    "activations-10-exact",
    "activations-10-approx",
    "activations-10-least",
    "activations-10-generous",
)

pytestmark = pytest.mark.skipif(
    not (PROC / "clear_refs").exists(), reason="the peak is read from Linux's /proc"
)


@cache
def measured(names: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """Bytes by case, all from one run."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.curvature.memory", *names],
        cwd=ROOT,
        env={**os.environ, **ALLOCATOR},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row.pop("name"): row for row in rows}


def assert_small(case: dict[str, int]) -> None:
    if case["peak"] is None:
        pytest.skip("the peak cannot be reset here")
    limit = 2 * case["activations"] + 2 * case["parameters"] + SLACK
    told = {key: f"{value / MIB:.0f} MiB" for key, value in case.items()}
    assert case["peak"] <= limit, told


def test_the_sizes_are_as_meant() -> None:
    case = measured(QUICK)["activations-10-approx"]
    assert case["activations"] > 100 * MIB and case["parameters"] < MIB


@pytest.mark.parametrize("name", [name for name in QUICK if "generous" not in name])
def test_peak(name: str) -> None:
    assert_small(measured(QUICK)[name])


def test_a_budget_lowers_the_peak() -> None:
    """One column at a time, and all eight behind the pooling together: seven images fewer."""
    least, generous = (measured(QUICK)[f"activations-10-{name}"] for name in ("least", "generous"))
    if least["peak"] is None:
        pytest.skip("the peak cannot be reset here")
    image = least["activations"] / 4  # of the four layers that make images
    assert generous["peak"] - least["peak"] > 7 * image - SLACK


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in QUICK])
def test_peak_of_every_method(name: str) -> None:
    assert_small(measured(tuple(CASES))[name])


@pytest.mark.slow
def test_the_number_of_columns_does_not_matter() -> None:
    """A hundred times the outputs: what is added is the larger last layer."""
    found = measured(tuple(CASES))
    few, many = found["activations-10-exact"], found["activations-1000-exact"]
    larger = many["parameters"] - few["parameters"]
    assert many["peak"] <= few["peak"] + 2 * larger + SLACK
