"""What all examples of this folder have in common: options, a table, and how long they took."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

# What all examples share lies beside this folder.
sys.path.append(str(Path(__file__).parents[1]))
import common  # noqa: E402
import pictures  # noqa: E402

once = common.once


def options(description: str, arguments: Sequence[str] | None, **more: str) -> argparse.Namespace:
    """The options of every example, --data, --seeds, --threads, and the files in ``more``."""
    parser = common.options(description, data="arrays x_train, y_train, x_test, y_test", **more)
    parser.add_argument("--seeds", type=int, default=3, help="repetitions (%(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch, or 0 for its own")
    found = parser.parse_args(arguments)
    if found.threads:
        torch.set_num_threads(found.threads)
    return found


def results(chosen: argparse.Namespace, name: str) -> Path | None:
    """The file that keeps what each run found, from which the picture is drawn."""
    return None if chosen.out is None else chosen.out / f"{name}.json"


@contextmanager
def timed() -> Iterator[None]:
    """Print how long the block took."""
    start = time.perf_counter()
    yield
    print(f"took {time.perf_counter() - start:.0f} s")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown with aligned columns; the first row is the head."""
    return common.table(rows[0], rows[1:])


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean and standard deviation over repetitions."""
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):.{digits}f}"


def save(out: Path | None, name: str, text: str, figure: Any = None) -> None:
    """Print the table; with a folder, keep it and the figure there."""
    common.show(name, text, figure, out)


new_figure, show, claim = pictures.figure, pictures.image, pictures.claim


def rounded(values: torch.Tensor, digits: int = 3) -> list[Any]:
    """Nested lists of numbers, short enough for a file."""

    def short(value: Any) -> Any:
        return [short(v) for v in value] if isinstance(value, list) else round(value, digits)

    return short(values.tolist())
