"""One process of several: runs all checks in the same order and says which failed, as JSON.

``python -m tests.processes.worker RANK SIZE FOLDER``
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main(rank: int, size: int, folder: Path) -> None:
    from tests.processes import checks

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    failed: dict[str, str] = {}
    for name, check in checks.CHECKS.items():
        try:
            check(rank, size, folder)
        except Exception:
            failed[name] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps({"done": list(checks.CHECKS), **failed}))
    # The last check leaves a process dead, so the group cannot be taken down in an orderly way.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
