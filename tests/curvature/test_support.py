"""The table of what is supported: it is what a run gives, and nothing in it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.curvature import support
from tests.curvature.zoo import GROUPS, ZOO

TABLE = (Path(__file__).parents[2] / "docs" / "support.md").read_text().splitlines()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def row(title: str) -> list[str]:
    (line,) = [line for line in TABLE if line.startswith(f"| {title} |")]
    return [entry.strip() for entry in line.strip("|").split("|")]


def test_nothing_is_wrong() -> None:
    assert not [line for line in TABLE if "wrong" in line]


def test_every_family_and_every_likelihood_is_there() -> None:
    assert set(support.TITLES) == set(GROUPS)
    titles = [support.TITLES[name] for name in GROUPS]
    titles += [
        f"{noise}, `{shape}`" for noise in support.NOISES.values() for shape in support.SHAPES
    ]
    rows = [row(title) for title in titles]
    assert all(len(cells) == 2 + len(support.METHODS) and all(cells) for cells in rows)
    assert sum(int(cells[1]) for cells in rows[: len(GROUPS)]) == len(ZOO)


@pytest.mark.parametrize("name", ["prelu", "several-outputs", "activation-last"])
def test_families_are_as_a_run_gives(name: str) -> None:
    assert row(support.TITLES[name]) == support.family_row(name)


@pytest.mark.parametrize("method", support.METHODS)
def test_computed_weights_are_as_a_run_gives(method: str) -> None:
    """The family that is refused most."""
    cells = row(support.TITLES["computed-weight"])
    found = support.cell(support.group("computed-weight"), method)
    assert cells[2 + list(support.METHODS).index(method)] == found


def test_likelihoods_are_as_a_run_gives() -> None:
    assert row("categorical, `[N, C, H, W]`") == support.noise_row("categorical", "[N, C, H, W]")


@pytest.mark.slow
def test_all_is_as_a_run_gives() -> None:
    assert list(support.lines()) == TABLE
