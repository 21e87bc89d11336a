"""Plots over the resolution: time and memory, a line for each method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.rows import Cases, Row

MOST_PANELS = 4
COLOURS = ("#7a7a7a", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2")
OURS = "#d62728"


def plot(name: str, cases: Cases, out: Path) -> list[Path]:
    """Time and memory over resolution, one figure for each variant that has several."""
    figures: dict[str, dict[int, list[Row]]] = {}
    for row in (row for rows in cases.values() for row in rows):
        place = _place(row)
        if row.seconds is not None and place is not None:
            figures.setdefault(place[0], {}).setdefault(place[1], []).append(row)
    paths = []
    for variant, panels in figures.items():
        if max(len({row.size["resolution"] for row in rows}) for rows in panels.values()) > 1:
            paths.append(_figure(name, variant, panels, out))
    return paths


def _place(row: Row) -> tuple[str, int] | None:
    """Figure and panel: what an op has beside its channels, or network and batch."""
    size = row.size
    if size.keys() >= {"network", "resolution", "samples"}:
        return size["network"], size["samples"]
    # Layers of a network have one resolution each: no sweep.
    if not size.keys() >= {"inputs", "resolution"} or size.get("layer"):
        return None
    columns = f"V{size['columns']}" if "columns" in size else f"O{size.get('outputs', 0)}"
    return size.get("activation") or columns, size["inputs"]


def _figure(name: str, variant: str, panels: Mapping[int, list[Row]], out: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # A few panels, from the fewest channels or samples to the most.
    every = sorted(panels)
    steps = max(1, min(MOST_PANELS, len(every)) - 1)
    shown = sorted({every[i * (len(every) - 1) // steps] for i in range(steps + 1)})
    others = dict.fromkeys(row.method for c in shown for row in panels[c] if row.kind != "ours")
    colour = dict(zip(others, COLOURS * len(others), strict=False))
    figure, axes = plt.subplots(
        2, len(shown), figsize=(3.1 * len(shown) + 0.6, 5.6), sharex=True, sharey="row",
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for column, c in enumerate(shown):
        lines: dict[str, list[Row]] = {}
        for row in panels[c]:
            lines.setdefault(row.method, []).append(row)
        # Ours last, so that it lies on top.
        for method, rows in sorted(lines.items(), key=lambda item: item[1][0].kind == "ours"):
            ours = rows[0].kind == "ours"
            style: dict[str, Any] = {
                "color": OURS if ours else colour[method],
                "linewidth": 2.4 if ours else 1.4,
                "marker": "o",
                "markersize": 4,
                "label": method,
            }
            at = [row.size["resolution"] for row in rows]
            axes[0, column].plot(at, [1e3 * (row.seconds or 0) for row in rows], **style)
            known = [row for row in rows if row.peak]
            axes[1, column].plot(
                [row.size["resolution"] for row in known],
                [(row.peak or 0) / 1e6 for row in known],
                **style,
            )
        axes[0, column].set_title(_panel_title(panels[c][0], c), fontsize=10)
        axes[1, column].set_xlabel("resolution")
    ticks = sorted({row.size["resolution"] for rows in panels.values() for row in rows})
    for axis in axes.flat:
        axis.set_xscale("log", base=2)
        if axis.lines and any(len(line.get_xdata()) for line in axis.lines):
            axis.set_yscale("log")
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("time [ms]")
    axes[1, 0].set_ylabel("peak extra memory [MB]")
    # A method may be missing where it would take too long: every panel has names to give.
    named: dict[str, Any] = {}
    for axis in axes[0]:
        handles, labels = axis.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    columns = max(2, len(shown))
    figure.legend(named.values(), named, loc="outside lower center", ncols=columns, frameon=False)
    title = variant.replace("V", "V = ")
    figure.suptitle(f"{name}, {title}")
    path = out / f"{name}-{variant}.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _panel_title(row: Row, value: int) -> str:
    if "network" in row.size:
        return f"batch {value}"
    return f"{value} channel{'s' if value > 1 else ''}"
