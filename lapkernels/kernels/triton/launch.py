"""Launching kernels: their tiles, the precision of products, the split of sums.

A kernel comes with a space of tiles. On a device the fastest is found at the first call for each
kind of layer (`key`) and cached by Triton; under torch's deterministic algorithms the first of the
space is used untimed, since the order of sums depends on the tile. The interpreter has one large
tile of its own, as each program is slow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lapkernels.kernels.triton import interpreted

Grid = Callable[[Mapping[str, Any]], tuple[int, ...]]

# Set explicitly: its default differs between versions of Triton.
OPTIONS: dict[str, Any] = {"enable_fp_fusion": True}
# Programs along each dimension of a grid, on NVIDIA devices.
MOST_PROGRAMS = (2**31 - 1, 65535, 65535)
# Registers of a thread, on NVIDIA devices.
MOST_REGISTERS = 255

TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


@dataclass(frozen=True, eq=False)
class Tile:
    """Constants of a kernel, with the warps and pipeline stages it is compiled for.

    `registers` is the limit of a thread, on NVIDIA devices. Without one the compiler spills a few
    bytes where that raises the occupancy, with TF32 products in most tiles: those always have one.
    """

    constants: Mapping[str, int]
    warps: int = 4
    stages: int = 2
    registers: int | None = None

    def options(self, tf32: bool = False) -> dict[str, Any]:
        """Compile options of the tile, besides `OPTIONS`."""
        registers = MOST_REGISTERS if tf32 else self.registers
        limit = {"maxnreg": registers} if registers and not torch.version.hip else {}
        return {"num_warps": self.warps, "num_stages": self.stages, **limit}


@dataclass(frozen=True, eq=False)
class Kernel:
    """A Triton function, its tiles for NVIDIA and AMD devices, and what they are chosen by.

    `rewrites` names tensors that are read and written, which timing must restore.
    `fits(arguments, constants)` drops tiles that are larger than the problem.
    """

    function: Any
    key: tuple[str, ...]
    nvidia: tuple[Tile, ...]
    amd: tuple[Tile, ...]
    interpreter: Mapping[str, int]
    rewrites: tuple[str, ...] = ()
    fits: Callable[[Mapping[str, Any], Mapping[str, int]], bool] = lambda arguments, constants: True

    def launch(self, grid: Grid, **arguments: Any) -> None:
        """Runs `grid(constants)` programs."""
        grid = within_limits(grid)
        if interpreted():
            self.function[grid](**arguments, **self.interpreter)
        elif torch.are_deterministic_algorithms_enabled():
            tile = self.tiles(arguments)[0]
            self.function[grid](
                **arguments,
                **tile.constants,
                **tile.options(is_tf32(arguments)),
                **OPTIONS,
            )
        else:
            self._tuned[grid](**arguments, **OPTIONS)

    def tiles(self, arguments: Mapping[str, Any]) -> list[Tile]:
        """The tiles for this machine's kind of device that fit these arguments."""
        space = self.amd if torch.version.hip else self.nvidia
        return [t for t in space if self.fits(arguments, t.constants)] or [space[-1]]

    @functools.cached_property
    def _tuned(self) -> Any:
        return self.tuner()

    def tuner(self, stopwatch: Callable[..., Any] | None = None) -> Any:
        """Triton's autotuner over the tiles that fit; tests replace its timer."""
        space = self.amd if torch.version.hip else self.nvidia
        configs = {
            (tile, tf32): triton.Config(dict(tile.constants), **tile.options(tf32))
            for tile in space
            for tf32 in (False, True)
        }

        def prune(every: list[Any], named: Mapping[str, Any], **rest: Any) -> list[Any]:
            arguments = {**named, **rest}
            return [configs[tile, is_tf32(arguments)] for tile in self.tiles(arguments)]

        return triton.autotune(
            [*configs.values()],
            list(self.key),
            prune_configs_by={"early_config_prune": prune},
            restore_value=list(self.rewrites),
            do_bench=stopwatch,
        )(self.function)


def within_limits(grid: Grid) -> Grid:
    """The grid, which raises where a device would refuse it."""

    def checked(constants: Mapping[str, Any]) -> tuple[int, ...]:
        programs = grid(constants)
        if any(count > most for count, most in zip(programs, MOST_PROGRAMS, strict=False)):
            raise RuntimeError(
                f"a launch of {programs} programs is beyond a device's {MOST_PROGRAMS}: "
                "use smaller batches, or fewer groups"
            )
        return programs

    return checked


def is_tf32(arguments: Mapping[str, Any]) -> bool:
    """Whether a launch multiplies in TF32."""
    return arguments.get("PRECISION", "ieee") != "ieee"


def product_types(tensor: Tensor, squared: bool = False) -> dict[str, Any]:
    """The types of a product: that of its factors, and that of its sums.

    Half precision factors stay as they are, unless one is `squared` before it is multiplied, which
    float32 holds exactly. torch.set_float32_matmul_precision is honoured: 'highest' is IEEE
    arithmetic, 'high' three TF32 products for each, 'medium' one.
    """
    wide = TYPES[torch.float64 if tensor.dtype == torch.float64 else torch.float32]
    # The interpreter computes with bfloat16 as if it were integers.
    factor = wide if squared or interpreted() else TYPES[tensor.dtype]
    precision = "ieee"
    if factor is tl.float32 and not torch.version.hip:
        asked = torch.get_float32_matmul_precision()
        precision = {"high": "tf32x3", "medium": "tf32"}.get(asked, "ieee")
    return {"FACTOR": factor, "SUM": wide, "PRECISION": precision}


def units(device: torch.device) -> int:
    """Multiprocessors of a device, or compute units."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def split_count(programs: int, steps: int, entries: int, device: torch.device) -> int:
    """The number of parts of a sum of `steps`, where `programs` alone do not fill the device.

    Partial sums of `entries` each are added in order by a second pass, so their number must not
    depend on anything but sizes and the device.
    """
    if interpreted():
        wanted = 2
    else:
        wanted = -(-4 * units(device) // max(1, programs))
    room = max(1, (1 << 24) // max(1, entries))
    return max(1, min(wanted, steps, room, 1024))


def power_of_two(count: int, least: int, most: int) -> int:
    """The smallest power of two that is at least `count`, clamped to the bounds."""
    return min(most, max(least, triton.next_power_of_2(max(1, count))))
