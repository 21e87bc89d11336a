"""Scaled dot-product attention: masks, causal, other scales and sizes."""

from __future__ import annotations

import pytest
import torch

from lapkernels.rules import MixesSamples, attention
from tests.rules import check
from tests.rules.calls import Arg, Case, aten, case, given, k, x

CPU = aten._scaled_dot_product_flash_attention_for_cpu.default


def _qkv(samples: int = 3, heads: int = 2, dim: int = 0, inner: int = 1) -> tuple[Arg, Arg, Arg]:
    q, key, value = (x(samples, heads, n, 2, dim=dim, inner=inner) for n in (4, 5, 5))
    return q, key, value


def _bool_mask() -> torch.Tensor:
    mask = torch.rand(4, 5) > 0.4
    mask[:, 0] = True
    return mask


CASES: list[Case] = [
    *case("plain", CPU, _qkv),
    *case("scale", CPU, _qkv, scale=0.3),
    *case("causal", CPU, lambda: [x(3, 1, 4, 3) for _ in range(3)] + [0.0, True]),
    *case("merged", CPU, lambda: _qkv(6, 1, inner=2)),
    *case("heads-first", CPU, lambda: _qkv(2, 3, dim=1)),
    *case("inactive-query", CPU, lambda: (x(3, 2, 4, 2, active=False), *_qkv()[1:])),
    *case("same-everywhere", CPU, lambda: [x(3, 1, 3, 2)] * 3),
]


def _float_mask() -> torch.Tensor:
    return torch.randn(4, 5, dtype=torch.float64)


MASKED = {
    "float-mask": lambda: k(_float_mask()),
    "mask-with-infinities": lambda: k(_float_mask().masked_fill(~_bool_mask(), float("-inf"))),
    "mask-of-each-sample": lambda: given(torch.randn(3, 1, 4, 5, dtype=torch.float64)),
}


test_rule = check.each_rule(CASES)


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_masks(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CHUNK", chunk)

    for one in case(name, CPU, lambda: (*_qkv(), {"attn_mask": MASKED[name]()})):
        check.rule(one)


def test_dropout_is_refused() -> None:
    (one, _) = case("dropout", CPU, lambda: (*_qkv(), 0.5))
    with pytest.raises((MixesSamples, RuntimeError)):
        check.rule(one)


def test_attention_over_samples_is_refused() -> None:
    (one, _) = case("over", CPU, lambda: [x(1, 2, 3, 2, dim=2) for _ in range(3)])
    check.refused(one, MixesSamples, "samples")
