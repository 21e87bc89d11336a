"""What the examples share: their options, and how they show what they found."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from pictures import DPI
from torch import Tensor, nn


def options(description: str | None, **files: str) -> argparse.ArgumentParser:
    """A parser with the options of every example; ``files`` says what is in those it can read."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, content in files.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=content)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="save table and figure there")
    parser.add_argument("--quick", action="store_true", help="a few seconds, for a first look")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    return parser


def minimise(
    loss: Callable[[], Tensor], parameters: Iterable[nn.Parameter], steps: int, rate: float
) -> None:
    """Adam on a function that gives the loss of a batch, with a rate that falls to zero."""
    optimizer = torch.optim.Adam(parameters, rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in markdown with columns of even width."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = [[c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard error of the mean."""
    mean = f"{fmean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {stdev(values) / len(values) ** 0.5:.{digits}f}"


def once(kept: Path | None, key: str, run: Callable[[], Any]) -> Any:
    """What a run found, as JSON holds it; if the file ``kept`` has it, the run is not done again.

    So an example that was stopped goes on where it was. The key says all settings of the run.
    """

    def known() -> dict[str, Any]:
        return json.loads(kept.read_text()) if kept is not None and kept.exists() else {}

    found = known()
    if key not in found:
        result = run()
        found = {**known(), key: result}
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = kept.with_suffix(".part")
            lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
            part.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            part.replace(kept)
    return found[key]


def show(name: str, tables: str, figure: Any, out: Path | None) -> None:
    """Print the tables; with a folder, save them and the figure there as ``name`` .md and .png."""
    print(tables)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.md").write_text(tables + "\n", encoding="utf-8")
        figure.savefig(out / f"{name}.png", dpi=DPI)
