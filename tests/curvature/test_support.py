"""The page of what is supported is what a run gives, and nothing in it is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lapkernels as lk
from tests.curvature import support, support_page
from tests.curvature.methods import Turn, variants
from tests.curvature.support_page import COLUMNS, FLOAT64, NOISES
from tests.curvature.truth import Truth
from tests.curvature.zoo import GROUPS, ZOO

PAGE = support_page.PATH.read_text()
EXCEPTIONS = support_page.written(PAGE)


def test_the_page_has_every_family_likelihood_and_column() -> None:
    """It is written again from its own exceptions, with the networks and likelihoods of today."""
    assert set(support_page.FAMILIES) == set(GROUPS)
    turns = [variants(Turn(number)) for number in range(8)]
    assert {variant.column for turn in turns for variant in turn} == set(COLUMNS)
    assert support_page.page(EXCEPTIONS) == PAGE


@pytest.mark.parametrize("number, id", [*enumerate(ZOO)], ids=ZOO)
def test_the_page_is_what_a_run_gives(number: int, id: str) -> None:
    """With one likelihood, all of them in turn; Hessians and float32 for some networks."""
    names = list(NOISES)
    noise = names[number // 4 % len(names)]
    found = support.outcomes(
        id,
        [noise if Truth(id).fits(noise) else "gaussian"],
        [column for column in COLUMNS if number % 8 == 0 or column != "Hessian"],
        [torch.float64, torch.float32] if number % 8 == 2 else [torch.float64],
    )
    # One turn in four has its blocks by neuron, which are a column of their own.
    assert {column for column, _ in found} >= set(COLUMNS) - {"Hessian", "blocks"}
    for (column, noise), value in found.items():
        if value in ("right", support.UNDRAWN):
            assert EXCEPTIONS[id].get(column) in (None, FLOAT64), (column, noise)
        else:
            assert EXCEPTIONS[id].get(column) == value, (column, noise)


@pytest.mark.slow
@pytest.mark.parametrize("id", ZOO)
def test_all_of_the_page_is_what_a_run_gives(id: str) -> None:
    assert support.exceptions(id) == EXCEPTIONS[id]


@pytest.mark.parametrize("noise", NOISES)
def test_images_as_outputs(noise: str) -> None:
    """No function wants them flattened, whatever the likelihood."""
    two = noise in ("heteroscedastic", "categorical", "categorical-weighted")
    id = "one-pixel" if two else "decoder"
    assert Truth(id).problem(noise, torch.float64).f.dim() == 4
    assert set(support.outcomes(id, [noise]).values()) <= {"right", support.UNDRAWN}


@pytest.mark.parametrize("function", [lk.diag, lk.kron, lk.blocks, lk.full, lk.ggn_product])
def test_outputs_that_a_likelihood_does_not_fit_raise(function: Any) -> None:
    for id, word in (
        ("no-output-dimension", "categorical"),
        ("no-output-dimension", "heteroscedastic"),
        ("decoder", "heteroscedastic"),
    ):
        model, x = ZOO[id].make()
        size = sum(p.numel() for p in model.parameters())
        more = (torch.ones(size, dtype=torch.float64),) if function is lk.ggn_product else ()
        with pytest.raises(ValueError, match="output dimension|even number|no classes"):
            function(model, x, *more, likelihood=word)
