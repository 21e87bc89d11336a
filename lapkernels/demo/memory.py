"""Peak extra memory of a call, as the operating system sees it."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

PROC = Path("/proc/self")
Result = TypeVar("Result")


def peak_extra_memory(call: Callable[[], Result]) -> tuple[Result, int | None]:
    """The call's result, and the bytes by which the resident set peaked above its size before.

    The result counts. Linux only (None elsewhere): the kernel's high-water mark is reset before
    the call. Free memory of the allocator is first returned to the system, as its use would not
    show.
    """
    gc.collect()
    if not _reset_high_water_mark():
        return call(), None
    before = _kilobytes("VmRSS")
    result = call()
    return result, max(0, _kilobytes("VmHWM") - before) * 1024


def _reset_high_water_mark() -> bool:
    try:
        ctypes.CDLL(None).malloc_trim(0)
        (PROC / "clear_refs").write_text("5")
    except (OSError, AttributeError, TypeError):
        return False
    return True


def _kilobytes(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB$", (PROC / "status").read_text(), re.MULTILINE)
    return int(found.group(1)) if found else 0
