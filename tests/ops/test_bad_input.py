"""What is wrong with an argument is said in an error that names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lapkernels import ops
from lapkernels.ops import Geometry
from tests.ops.cases import FEW, Layer, draw, over
from tests.ops.operations import OPERATIONS, WITH_OUT, Operation, each

CONV, GROUPED = FEW[3], FEW[2]
REFUSED = (ValueError, TypeError, RuntimeError)

# How a tensor of a convolution is spoilt, whatever its role.
WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "integers": lambda t: t.long(),
    "complex": lambda t: t.to(torch.complex64),
    "rank_too_high": lambda t: t.unsqueeze(0),
    "rank_too_low": lambda t: t[0],
}
# These show only where there is another tensor to differ from.
DIFFERENT: dict[str, Callable[[Tensor], Tensor]] = {
    "float64": lambda t: t.double(),
    "meta": lambda t: t.to("meta"),
    "shorter": lambda t: t[..., :-2],
    "more_channels": lambda t: t.repeat_interleave(2, -3),
    "more_samples": lambda t: t.repeat_interleave(2, -4),
}

# Without a variance nothing says how many channels there are, without z how many samples.
HARMLESS = {
    "squared_conv_input": [("m", "more_samples"), ("weight", "more_channels")],
    "squared_conv_weight": [("m", "more_channels"), ("x", "more_channels")],
    "jacobian_squared_sum": [("s", "more_channels"), ("x", "more_channels")],
}


@each(OPERATIONS)
@over([CONV, GROUPED])
@pytest.mark.parametrize("change", WRONG)
@pytest.mark.usefixtures("backend")
def test_wrong_tensor(operation: Operation, layer: Layer, change: str) -> None:
    data = draw(layer, torch.float32)
    for name in operation.reads:
        with pytest.raises(REFUSED, match=rf"\b{name.removeprefix('bias_')}\b"):
            operation.run(data.map(WRONG[change], name))


@each([operation for operation in WITH_OUT if len(operation.reads) > 1])
@over([CONV])
@pytest.mark.parametrize("change", DIFFERENT)
@pytest.mark.usefixtures("backend")
def test_tensors_that_do_not_go_together(operation: Operation, layer: Layer, change: str) -> None:
    """The message names one of them."""
    data = draw(layer, torch.float32)
    names = "|".join([*operation.reads, "input", "output"])
    for name in operation.reads:
        if (name, change) in HARMLESS.get(operation.name, ()):
            continue
        with pytest.raises(REFUSED, match=rf"\b({names})\b"):
            operation.run(data.map(DIFFERENT[change], name))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each(WITH_OUT)
@pytest.mark.usefixtures("cpp")
def test_half_is_refused_by_the_compiled_kernels(operation: Operation, dtype: torch.dtype) -> None:
    data = draw(CONV, torch.float32).map(lambda t: t.to(dtype))
    with pytest.raises(RuntimeError, match=str(dtype)):
        operation.run(data)


@each(WITH_OUT)
@pytest.mark.usefixtures("backend")
def test_groups_that_do_not_divide(operation: Operation) -> None:
    data = draw(CONV, torch.float32)
    geometry = Geometry.conv(3, padding=1, groups=4)

    class Grouped(Layer):
        @property
        def geometry(self) -> Geometry:  # type: ignore[override]
            return geometry

    layer = Grouped(CONV.kind, CONV.channels, CONV.size, CONV.samples, CONV.columns)
    with pytest.raises(ValueError, match="groups|channels"):
        operation.run(type(data)(**{**vars(data), "layer": layer}))


GEOMETRIES: list[tuple[dict[str, object], str]] = [
    ({"stride": -1}, "stride"),
    ({"stride": 0}, "stride"),
    ({"dilation": 0}, "dilation"),
    ({"padding": -1}, "padding"),
    ({"padding": "nearly"}, "padding"),
    ({"padding": "same", "stride": 2}, "padding"),
    ({"padding_mode": "mirror"}, "padding_mode"),
    ({"groups": 0}, "groups"),
    ({"kernel_size": 0}, "kernel_size"),
    ({"kernel_size": (3, 3, 3, 3)}, "kernel_size"),
    ({"stride": (1, 1, 1)}, "stride"),
    ({"output_padding": 1}, "output_padding"),
    ({"output_padding": -1, "transposed": True}, "output_padding"),
    ({"padding_mode": "reflect", "transposed": True}, "padding_mode"),
]


@pytest.mark.parametrize(("words", "name"), GEOMETRIES)
def test_bad_geometry(words: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Geometry.conv(**{"kernel_size": 3, **words})  # type: ignore[arg-type]


def test_geometry_of_another_module() -> None:
    with pytest.raises(TypeError, match="BatchNorm2d"):
        Geometry.of(nn.BatchNorm2d(3))


@pytest.mark.usefixtures("backend")
def test_activation() -> None:
    data = draw(CONV, torch.float32)
    base = (data.m, data.weight, CONV.size, CONV.geometry)
    with pytest.raises(ValueError, match="activation='swish'.*tanh"):
        ops.squared_conv_input(*base, z=data.z, activation="swish")
    with pytest.raises(ValueError, match=r"\bz\b.*activation"):
        ops.squared_conv_input(*base, activation="tanh")
    with pytest.raises(ValueError, match=r"\bz\b.*activation"):
        ops.squared_conv_input(*base, z=data.z)
    with pytest.raises(ValueError, match="activation='swish'"):
        ops.squared_derivative(data.z, data.z, "swish")
    with pytest.raises(ValueError, match=r"\bz\b"):
        ops.squared_derivative(data.z, data.z[:1], "tanh")
    with pytest.raises(TypeError, match=r"\bz\b"):
        ops.squared_derivative(data.z, data.z.double(), "tanh")


@pytest.mark.parametrize("size", [(9,), (9, 7, 1), (9, 8), (10, 7), (-9, 7)])
@pytest.mark.usefixtures("backend")
def test_input_size_that_the_layer_does_not_map_to_m(size: tuple[int, ...]) -> None:
    data = draw(CONV, torch.float32)
    with pytest.raises(ValueError, match="input"):
        ops.squared_conv_input(data.m, data.weight, size, CONV.geometry)


@pytest.mark.usefixtures("backend")
def test_input_smaller_than_the_kernel() -> None:
    x = torch.ones(1, 3, 2, 2)
    with pytest.raises(ValueError, match=r"\bx\b"):
        ops.kronecker_input(x, Geometry.conv(5))
