"""Time and memory of curvature against resolution: one picture, and how fast each line grows.

python -m benchmarks.scaling --out docs/measured                   # what is missing, then draws
python -m benchmarks.scaling diag_exact --out docs/measured        # one of them anew
python -m benchmarks.scaling diag_exact-512 --out docs/measured    # one size of it
python -m benchmarks.scaling --out docs/measured --draw FILE       # draws what a run has measured

The five convolutions of Laplacian autoencoders' Figure 7, one image, 32² to 512² pixels: blocks,
Kronecker factors, exact, mixed and approximate diagonals, by this package and by others. A piece is
a family at a size, and leaves `benchmarks/results/scaling/NAME.json`. A method that was refused at
a size, mostly for its time, is not tried at larger ones.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import machine, merged
from benchmarks.rows import Row, by_family
from benchmarks.units import duration, memory, render

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "scaling"
RESOLUTIONS = (32, 64, 128, 256, 512)
# Words for the families, a colour each, and the other package that is drawn beside ours.
FAMILIES = {
    "blocks": ("blocks by layer", "#9467bd", ""),
    "kflr": ("Kronecker factors", "#8c564b", "BackPACK"),
    "diag_exact": ("exact diagonal", "#1f77b4", "BackPACK"),
    "diag_mixed": ("mixed diagonal", "#2ca02c", ""),
    "diag_approx": ("approximate diagonal", "#d62728", "StochMan"),
}
# Seconds that a call may take.
LONGEST = 20
TITLE = f"""# Time and memory against resolution

One image through the five convolutions of the paper's Figure 7: least time of a call, and peak of
the memory that it needs beside its arguments and results. A call may take {LONGEST} s; what takes
longer at a size is not tried at larger ones. Slopes are against the number of pixels, on
logarithmic axes, over all sizes that were measured.

"""
PIECES = [f"{name}-{resolution}" for name in FAMILIES for resolution in RESOLUTIONS]
CASE = re.compile(r"conv5-r(\d+)-n1")


def drawn(name: str) -> list[str]:
    """The methods of a family that are in the picture."""
    return [word for word in ("lapkernels", FAMILIES[name][2]) if word] if name in FAMILIES else []


def sizes(word: str) -> tuple[str, list[int]]:
    """A family with all its sizes, or with the one of a piece."""
    if word in FAMILIES:
        return word, list(RESOLUTIONS)
    name, _, resolution = word.rpartition("-")
    return name, [int(resolution)]


def known(name: str, resolution: int) -> dict[str, Any]:
    """What a piece has left, or nothing."""
    path = RESULTS / f"{name}-{resolution}.json"
    return json.loads(path.read_text()) if path.exists() else {"refused": []}


def candidates(name: str, resolution: int) -> list[str]:
    """Methods that neither this size nor a smaller one has refused."""
    tried = RESOLUTIONS[: RESOLUTIONS.index(resolution) + 1]
    refused = {entry["method"] for size in tried for entry in known(name, size)["refused"]}
    return [method for method in drawn(name) if method not in refused]


def run(name: str, resolutions: Sequence[int]) -> None:
    """Measure a family at some sizes, in one process."""
    cases = {r: f"{name}-conv5-r{r}-n1-" for r in resolutions}
    words = [f"{case}{method}" for r, case in cases.items() for method in candidates(name, r)]
    if not words:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    part = RESULTS / f"{name}.part"
    command = [
        *(sys.executable, "-m", "pytest", "benchmarks", "-q", "--benchmark-only"),
        *("-p", "no:cacheprovider", f"--benchmark-json={part}"),
        *("--case-seconds", "4", "--rounds", "200", "--method-seconds", str(LONGEST)),
        *("-k", f"not gradient_and and ({' or '.join(words)})"),
    ]
    if subprocess.run(command, cwd=ROOT).returncode:
        # Too slow at this size, which the table says, or wrong.
        print(f"{name} has cases that failed: see above", file=sys.stderr)
    if part.exists():
        split(json.loads(part.read_text()), name, resolutions)
        part.unlink()


def split(data: Mapping[str, Any], name: str, resolutions: Sequence[int]) -> None:
    """Write a run's cases to their pieces, which keep what they had refused before."""
    for resolution in resolutions:
        case = f"conv5-r{resolution}-n1"
        timed = [entry for entry in data["benchmarks"] if entry["extra_info"]["case"] == case]
        refused = [entry for entry in data["refused"] if entry["case"] == case]
        refused += known(name, resolution)["refused"]
        if timed or refused:
            text = json.dumps({**data, "benchmarks": timed, "refused": refused})
            (RESULTS / f"{name}-{resolution}.json").write_text(text)


def lines(data: Any) -> dict[tuple[str, str], list[Row]]:
    """Rows by family and method, from the lowest resolution up."""
    found: dict[tuple[str, str], list[Row]] = {}
    for name, cases in by_family(data).items():
        for row in (row for case, rows in cases.items() if CASE.fullmatch(case) for row in rows):
            if row.seconds is not None and row.method in drawn(name):
                found.setdefault((name, row.method), []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row.size["resolution"])
    return found


def slope(rows: Sequence[Row], value: str) -> float | None:
    """Least-squares slope of log(time or memory) against log(pixels)."""
    points = [
        (2 * math.log(row.size["resolution"]), math.log(number))
        for row in rows
        if (number := getattr(row, value))
    ]
    if len(points) < 3:
        return None
    x, y = (sum(p[k] for p in points) / len(points) for k in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def reasons(data: Any) -> dict[tuple[str, str], dict[int, str]]:
    """Why a method was not timed, by family and method, at each resolution."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for entry in data["refused"]:
        if case := CASE.fullmatch(entry["case"]):
            why = entry["reason"].rpartition(": ")[2]
            found.setdefault((entry["family"], entry["method"]), {})[int(case[1])] = why
    return found


def table(
    found: dict[tuple[str, str], list[Row]], refused: dict[tuple[str, str], dict[int, str]]
) -> list[str]:
    """A line for each family and method."""
    rows = [["quantity", "method", *(f"{r}²" for r in RESOLUTIONS), "slope of time", "of memory"]]
    for (name, method), values in found.items():
        cells = dict.fromkeys(RESOLUTIONS, "not tried") | refused.get((name, method), {})
        for row in values:
            cells[row.size["resolution"]] = f"{duration(row.seconds)}, {memory(row.peak)}"
        slopes = (slope(values, "seconds"), slope(values, "peak"))
        words = ["" if value is None else f"{value:.2f}" for value in slopes]
        rows.append([FAMILIES[name][0], method, *(cells[r] for r in RESOLUTIONS), *words])
    return render(rows)


def draw(found: dict[tuple[str, str], list[Row]], path: Path) -> None:
    """Time and memory side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.9), layout="constrained")
    for (name, method), rows in found.items():
        words, colour, _ = FAMILIES[name]
        ours = method == "lapkernels"
        style: dict[str, Any] = {
            "color": colour,
            "linestyle": "-" if ours else "--",
            "marker": "o" if ours else "x",
            "label": words if ours else f"{words}, {method}",
        }
        at = [row.size["resolution"] for row in rows]
        axes[0].plot(at, [1e3 * (row.seconds or 0) for row in rows], **style)
        known = [row for row in rows if row.peak]
        axes[1].plot(
            [row.size["resolution"] for row in known],
            [(row.peak or 0) / 1e6 for row in known],
            **style,
        )
    for axis, words in zip(axes, ("time [ms]", "peak extra memory [MB]"), strict=True):
        # A run of other cases, or without memory, leaves axes with nothing to scale.
        drawn_at = "log" if any(len(line.get_xdata()) for line in axis.lines) else "linear"
        axis.set(xscale="log", yscale=drawn_at, xlabel="resolution", ylabel=words)
        axis.set_xticks(RESOLUTIONS, [f"{r}²" for r in RESOLUTIONS])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pieces", nargs="*", choices=[*FAMILIES, *PIECES, []], help="only these")
    parser.add_argument("--out", type=Path, required=True, help="folder for picture and table")
    parser.add_argument(
        "--draw", type=Path, nargs="*", metavar="FILE", help="draw what was measured before, there"
    )
    arguments = parser.parse_args(argv)
    files: list[Path] = arguments.draw or [RESULTS / f"{piece}.json" for piece in PIECES]
    if arguments.draw is None:
        missing = [path.stem for path in files if not path.exists()]
        wanted: dict[str, list[int]] = {}
        for word in arguments.pieces or missing:
            name, resolutions = sizes(word)
            wanted.setdefault(name, []).extend(resolutions)
        for name, resolutions in wanted.items():
            run(name, resolutions)
    data = merged([json.loads(path.read_text()) for path in files if path.exists()])
    text = "\n".join(table(lines(data), reasons(data)))
    about = "\n".join(machine(data["machine_info"]))
    arguments.out.mkdir(parents=True, exist_ok=True)
    draw(lines(data), arguments.out / "scaling.png")
    (arguments.out / "scaling.md").write_text(TITLE + f"{text}\n\n{about}\n")
    print(text)


if __name__ == "__main__":
    main()
