"""Batch, instance, layer, group and RMS normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from lapkernels.rules import MixesSamples
from tests.rules import check
from tests.rules.calls import Arg, Case, aten, case, k, w, x


def _running(channels: int) -> tuple[Arg, Arg]:
    return k(_double(channels)), k(_double(channels).square() + 0.5)


def _double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


BATCH = aten.native_batch_norm.default
NO_TRAINING = aten._native_batch_norm_legit_no_training.default
NO_STATISTICS = aten._native_batch_norm_legit.no_stats
CASES: list[Case] = [
    *case("batch", BATCH, lambda: (x(3, 4), w(4), w(4), *_running(4), False, 0.1, 1e-5)),
    *case("batch-2d", BATCH, lambda: (x(3, 2, 2, 3), w(2), w(2), *_running(2), False, 0.1, 1e-3)),
    *case("batch-plain", BATCH, lambda: (x(3, 2, 3), None, None, *_running(2), False, 0.1, 1e-5)),
    *case("batch-bias", BATCH, lambda: (x(3, 2, 3), None, w(2), *_running(2), False, 0.1, 1e-5)),
    *case("batch-merged", BATCH,
        lambda: (x(12, 2, 3, outer=2, inner=2), w(2), w(2), *_running(2), False, 0.1, 1e-5)),
    *case("batch-no-training", NO_TRAINING,
        lambda: (x(3, 2, 2), w(2), w(2), *_running(2), 0.1, 1e-5)),
    *case("instance", BATCH, lambda: (_folded(2), w(6), w(6), None, None, True, 0.1, 1e-5)),
    *case("instance-no-statistics", NO_STATISTICS,
        lambda: (_folded(2), w(6), w(6), True, 0.1, 1e-5)),
    *case("instance-plain", BATCH, lambda: (_folded(2), None, None, None, None, True, 0.1, 1e-3)),
    *case("instance-running", BATCH,
        lambda: (_folded(2), w(6), w(6), *_running(6), False, 0.1, 1e-5)),
    *case("layer", aten.native_layer_norm.default, lambda: (x(3, 4), [4], w(4), w(4), 1e-5)),
    *case("layer-two-dims", aten.native_layer_norm.default,
        lambda: (x(3, 2, 2, 3), [2, 3], w(2, 3), w(2, 3), 1e-2)),
    *case("layer-samples-second", aten.native_layer_norm.default,
        lambda: (x(2, 3, 4, dim=1), [4], w(4), None, 1e-5)),
    *case("layer-merged", aten.native_layer_norm.default,
        lambda: (x(12, 4, outer=2, inner=2), [4], w(4), w(4), 1e-5)),
    *case("layer-plain", aten.native_layer_norm.default, lambda: (x(3, 4), [4], None, None, 0.1)),
    *case("rms", aten._fused_rms_norm.default, lambda: (x(3, 2, 4), [4], w(4), 1e-5)),
    *case("rms-plain", aten._fused_rms_norm.default, lambda: (x(3, 2, 3), [2, 3], None, None)),
    *case("group", aten.native_group_norm.default,
        lambda: (x(3, 4, 2, 2), w(4), w(4), 3, 4, 4, 2, 1e-5)),
    *case("group-merged", aten.native_group_norm.default,
        lambda: (x(6, 4, 3, inner=2), w(4), w(4), 6, 4, 3, 1, 1e-2)),
    *case("weight-norm", aten._weight_norm_interface.default, lambda: (x(3, 4), k(_double(3, 1)))),
    *case("group-plain", aten.native_group_norm.default,
        lambda: (x(3, 4, 3), None, None, 3, 4, 3, 2, 1e-5)),
]  # fmt: skip


def _folded(channels: int) -> Arg:
    """Samples among the channels, as InstanceNorm runs."""
    return x(1, 3 * channels, 2, 2, dim=1, inner=channels)


test_rule = check.each_rule(CASES)


def test_statistics_of_the_batch_are_refused() -> None:
    (one, _) = case("train", BATCH, lambda: (x(3, 4), w(4), w(4), *_running(4), True, 0.1, 1e-5))
    check.refused(one, MixesSamples, "eval")


def test_a_norm_over_samples_is_refused() -> None:
    op = aten.native_layer_norm.default
    (one, _) = case("over", op, lambda: (x(2, 3, dim=1), [3], None, None, 1e-5))
    check.refused(one, MixesSamples, "samples")
