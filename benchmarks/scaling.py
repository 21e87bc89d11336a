"""Time and memory of curvature against resolution: one picture, and how fast each line grows.

python -m benchmarks.scaling --out docs/measured                   # measures all, then draws
python -m benchmarks.scaling diag_exact --out docs/measured        # one of them anew
python -m benchmarks.scaling --out docs/measured --draw            # draws what was measured before

The five convolutions of Laplacian autoencoders' Figure 7, one image, 32² to 512² pixels: blocks,
Kronecker factors, exact, mixed and approximate diagonals, by this package and by others.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import merged
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
# Where all columns take too long to be worth a point.
LARGEST = {"blocks": 64, "kflr": 64, "diag_exact": 256}


def pattern(name: str) -> str:
    """The cases of a family, for pytest's -k."""
    methods = " or ".join(word for word in ("lapkernels", FAMILIES[name][2]) if word)
    sizes = " or ".join(
        f"{name}-conv5-r{resolution}-n1-"
        for resolution in RESOLUTIONS
        if resolution <= LARGEST.get(name, resolution)
    )
    return f"not gradient_and and ({sizes}) and ({methods})"


def run(name: str) -> None:
    """Measure one family."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", "benchmarks", "-q", "--benchmark-only"),
        *("-p", "no:cacheprovider", f"--benchmark-json={RESULTS / name}.json"),
        *("--case-seconds", "0.5", "--method-seconds", "15", "--benchmark-columns=min"),
        *("-k", pattern(name)),
    ]
    if subprocess.run(command, cwd=ROOT).returncode:
        # Too slow at a size, or wrong: what was measured before it is drawn all the same.
        print(f"{name} has cases that failed: see above", file=sys.stderr)


def lines(data: Any) -> dict[tuple[str, str], list[Row]]:
    """Rows by family and method, from the lowest resolution up."""
    found: dict[tuple[str, str], list[Row]] = {}
    for name, cases in by_family(data).items():
        for row in (row for rows in cases.values() for row in rows):
            if row.seconds is not None and row.kind != "unit":
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


def table(found: dict[tuple[str, str], list[Row]]) -> list[str]:
    """A line for each family and method."""
    rows = [["quantity", "method", *(f"{r}²" for r in RESOLUTIONS), "slope of time", "of memory"]]
    for (name, method), values in found.items():
        at = {row.size["resolution"]: row for row in values}
        cells = [
            f"{duration(at[r].seconds)}, {memory(at[r].peak)}" if r in at else ""
            for r in RESOLUTIONS
        ]
        slopes = (slope(values, "seconds"), slope(values, "peak"))
        words = ["" if value is None else f"{value:.2f}" for value in slopes]
        rows.append([FAMILIES[name][0], method, *cells, *words])
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
        axis.set(xscale="log", yscale="log", xlabel="resolution", ylabel=words)
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
    parser.add_argument("families", nargs="*", choices=[*FAMILIES, []], help="only these")
    parser.add_argument("--out", type=Path, required=True, help="folder for picture and table")
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    arguments = parser.parse_args(argv)
    for name in () if arguments.draw else arguments.families or FAMILIES:
        run(name)
    files = [RESULTS / f"{name}.json" for name in FAMILIES]
    found = lines(merged([json.loads(path.read_text()) for path in files if path.exists()]))
    arguments.out.mkdir(parents=True, exist_ok=True)
    draw(found, arguments.out / "scaling.png")
    text = "\n".join(table(found))
    (arguments.out / "scaling.md").write_text(f"# Time and memory against resolution\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
