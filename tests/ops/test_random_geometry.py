"""Convolutions that nobody thought of: random geometry, integers, equality."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.ops.cases import Layer, draw
from tests.ops.compare import assert_same, exact_in
from tests.ops.operations import WITH_OUT

FAMILIES = ["squared_conv_input", "squared_conv_weight", "jacobian", "kronecker"]


@st.composite
def layers(choose: st.DrawFn) -> Layer:
    """A convolution of one to three dimensions, plain or transposed, that makes an output."""
    dims = choose(st.integers(1, 3))
    transposed = choose(st.booleans())

    def per_dim(low: int, high: int) -> tuple[int, ...]:
        return choose(st.tuples(*[st.integers(low, high)] * dims))

    longest = {1: 40, 2: 9, 3: 5}[dims]
    groups = choose(st.integers(1, 3))
    options: dict[str, Any] = {
        "kernel_size": per_dim(1, {1: 18, 2: 5, 3: 3}[dims]),
        "stride": per_dim(1, 3),
        "padding": per_dim(0, 4),
        "dilation": per_dim(1, 3),
        "groups": groups,
    }
    size = per_dim(1, longest)
    if transposed:
        options["output_padding"] = tuple(
            choose(st.integers(0, max(s, d) - 1))
            for s, d in zip(options["stride"], options["dilation"], strict=True)
        )
    else:
        options["padding_mode"] = choose(
            st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"])
        )
    name = f"conv{'_transpose' if transposed else ''}{dims}d"
    channels = (groups * choose(st.integers(1, 9)), groups * choose(st.integers(1, 9)))
    samples, columns = choose(st.integers(1, 3)), choose(st.sampled_from([1, 2, 5]))
    layer = Layer(name, channels, size, samples, columns, tuple(options.items()))
    try:
        made = layer.output_shape(1)[2:]
    except (RuntimeError, ValueError):  # torch refuses: no output, or padding beyond the input
        made = (0,)
    assume(all(made))
    return layer


@pytest.mark.parametrize("family", FAMILIES)
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(layer=layers(), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_is_exact_on_any_geometry(
    backend: str, family: str, layer: Layer, dtype: torch.dtype
) -> None:
    data = draw(layer, dtype, integers=True)
    operations = [operation for operation in WITH_OUT if operation.name.startswith(family)]
    assert operations, "no case would run"
    for operation in operations:
        wanted = operation.brute(data)
        assert operation.magnitude(data).max() <= exact_in(dtype), "partial sums might round"
        # Where only padding is read, zero is the right answer.
        assert_same(operation.run(data), wanted, empty=not wanted.any())
