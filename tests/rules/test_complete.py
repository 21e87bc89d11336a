"""Every rule has a case, and every in-place op is served by the rule of its functional twin."""

from __future__ import annotations

from lapkernels.rules import rule_names
from lapkernels.rules.chance import _RANDOM
from tests.rules import (
    test_affine,
    test_attention,
    test_by_autograd,
    test_chance,
    test_elementwise,
    test_indexing,
    test_normalization,
    test_padding,
    test_pooling,
    test_rearrangement,
    test_reductions,
    test_resampling,
)

# Kernels that only run on a GPU, or that torch never returns from a call of its public interface.
ELSEWHERE = {
    *("aten::cudnn_batch_norm", "aten::miopen_batch_norm", "aten::_batch_norm_no_update"),
    *("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_cudnn_attention"),
    "aten::_scaled_dot_product_efficient_attention",
}
FILES = (
    *(test_affine, test_attention, test_chance, test_elementwise, test_by_autograd, test_indexing),
    *(test_normalization, test_padding, test_pooling, test_rearrangement, test_reductions),
    test_resampling,
)


def test_every_rule_has_a_case() -> None:
    tested = {one.name for file in FILES for one in file.CASES}
    refused = {f"aten::{name}" for name in _RANDOM}
    assert set(rule_names()) - tested - refused - ELSEWHERE == set()


def test_every_case_has_a_rule() -> None:
    assert {one.name for file in FILES for one in file.CASES} <= set(rule_names())
