"""Making the allocator reuse freed memory."""

from __future__ import annotations

from functools import cache

import torch


@cache
def keep_freed_memory() -> None:
    """Free one untouched block of nearly 32 MB, which raises glibc's dynamic trim threshold.

    glibc returns memory to the system above twice the largest block freed so far, counted up to
    32 MB. A batch often frees more than the default, and the next one would pay for page faults.
    From now on the process keeps up to 64 MB.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8, device="cpu")
