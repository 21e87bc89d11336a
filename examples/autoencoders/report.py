"""What all examples have in common: options, a table, and how long they took."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def options(description: str, arguments: Sequence[str] | None, **more: str) -> argparse.Namespace:
    """--data, --quick, --out, --seeds and --threads, and files of other names in ``more``."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--data", type=Path, help="arrays x_train, y_train, x_test, y_test (.npz)")
    for name, text in more.items():
        parser.add_argument(f"--{name}", type=Path, help=text)
    parser.add_argument("--quick", action="store_true", help="a few images and steps only")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="save table and figure there")
    parser.add_argument("--seeds", type=int, default=3, help="repetitions (%(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch, or 0 for its own")
    found = parser.parse_args(arguments)
    if found.threads:
        torch.set_num_threads(found.threads)
    if found.out:
        found.out.mkdir(parents=True, exist_ok=True)
    return found


@contextmanager
def timed() -> Iterator[None]:
    """Print how long the block took."""
    start = time.perf_counter()
    yield
    print(f"took {time.perf_counter() - start:.0f} s")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown with aligned columns; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for index, row in enumerate(rows):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("| " + " | ".join(cells) + " |")
        if index == 0:
            rule = [
                "-" * width if c == 0 else "-" * (width - 1) + ":" for c, width in enumerate(widths)
            ]
            lines.append("| " + " | ".join(rule) + " |")
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean and standard deviation over repetitions."""
    found = torch.tensor(values, dtype=torch.float64)
    if len(values) == 1:
        return f"{float(found[0]):.{digits}f}"
    return f"{float(found.mean()):.{digits}f} ± {float(found.std()):.{digits}f}"


def save(out: Path | None, name: str, text: str, figure: Any = None) -> None:
    """Print the table; with a folder, keep it and the figure there."""
    print(text)
    if out is None:
        return
    (out / f"{name}.md").write_text(text + "\n")
    if figure is not None:
        figure.savefig(out / f"{name}.png", dpi=100, bbox_inches="tight")


def new_figure(rows: int, columns: int, size: tuple[float, float], **settings: Any) -> Any:
    """A figure that needs no display, and its axes [rows, columns]."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, **settings)
    return figure, axes


def show(axes: Any, image: torch.Tensor, colours: str = "gray", title: str = "") -> None:
    """An image [1, H, W] without ticks."""
    axes.imshow(image[0], cmap=colours)
    axes.set_xticks([])
    axes.set_yticks([])
    if title:
        axes.set_title(title, fontsize=9)
