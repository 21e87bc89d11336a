"""Every instance of every CUDA kernel is run by the emulator, in the shapes that tests check."""

from __future__ import annotations

import ctypes
import re
import subprocess

import pytest

from lapkernels import ops
from tests.cuda import build
from tests.cuda.conftest import DTYPES
from tests.cuda.test_agreement import CONV, WIDE
from tests.cuda.test_columns import MANY
from tests.cuda.test_pointwise import full_lists
from tests.ops.cases import draw
from tests.ops.operations import WITH_OUT
from tests.ops.windows import pair

# A function template of our namespace whose own name ends so.
KERNEL = re.compile(r"_ZN10lapkernels4cuda\d+[a-z_]+_kernelI")


def instances() -> set[str]:
    """Symbols of all kernels in the library of emulated ops."""
    command = ["nm", "-D", "--defined-only", str(build.library())]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {symbol for symbol in symbols if KERNEL.match(symbol)}


def launched() -> set[str]:
    """Symbols of the kernels launched since the last call."""
    read = ctypes.CDLL(str(build.library())).emulated_launches
    read.restype = ctypes.c_char_p
    return {*read().decode().split()}


@pytest.mark.parametrize("target", ["emulated"], indirect=True)
def test_every_instance_runs(target: object) -> None:
    launched()
    for dtype in DTYPES:
        for operation in WITH_OUT:
            for layer in (CONV, WIDE):
                operation.run(draw(layer, dtype))
        small, large = pair(MANY[0], False, dtype)
        ops.window_squared_sum(small, large, MANY[0].kernel, *MANY[0].places)
        ops.squared_derivative(small, small, "relu")
        ops.gaussian_kl(full_lists(dtype, 1), full_lists(dtype, 2), 1.0)
    every = instances()
    assert len(every) > 40
    assert launched() == every
