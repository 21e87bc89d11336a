"""The page on CUDA kernels: figures are those of the model, with a reason for each below 70 %."""

from __future__ import annotations

from benchmarks.cuda.report import TARGET, TEMPLATE, roofline_table
from benchmarks.cuda.roofline import COSTS, SHAPES


def test_the_page_is_up_to_date() -> None:
    assert "\n".join(roofline_table()) in TARGET.read_text()


def test_what_is_below_the_bound_has_a_reason() -> None:
    _, _, reasons = TEMPLATE.read_text().partition("Below 70 %")
    reasons = reasons.partition("\n\n")[0]
    low = {op for op, cost in COSTS.items() if any(cost(shape).share < 0.7 for shape in SHAPES)}
    assert low and all(f"`{op}`" in reasons for op in low), low
