"""Renders a JSON file of the benchmarks to Markdown tables and plots.

python -m benchmarks.report benchmarks/results/latest.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_PANELS = 4
COLOURS = ("#7a7a7a", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2")
OURS = "#d62728"


@dataclass(frozen=True)
class Row:
    """One method in one case."""

    family: str
    case: str
    method: str
    kind: str
    size: Mapping[str, Any]
    seconds: float | None = None
    peak: int | None = None
    error: float | None = None
    refused: str | None = None


Cases = dict[str, list[Row]]


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path, help="file written by pytest --benchmark-json")
    parser.add_argument("--out", type=Path, help="folder to write to (default: beside the file)")
    arguments = parser.parse_args(argv)
    out = arguments.out or arguments.json.parent
    out.mkdir(parents=True, exist_ok=True)
    for path in write(json.loads(arguments.json.read_text()), out):
        print(path)


def write(data: Mapping[str, Any], out: Path) -> list[Path]:
    """Write report.md and a plot for each sweep over resolutions; returns the files."""
    families = by_family(data)
    plots = {name: plot(name, cases, out) for name, cases in families.items()}
    report = out / "report.md"
    report.write_text("\n".join(markdown(data, families, plots)) + "\n")
    return [report, *(path for paths in plots.values() for path in paths)]


def by_family(data: Mapping[str, Any]) -> dict[str, Cases]:
    """Rows of every case of every family, in the order of the file; refused methods last."""
    rows = []
    for entry in data["benchmarks"]:
        info = entry["extra_info"]
        named = {key: info[key] for key in ("family", "case", "method", "kind", "size", "error")}
        peak = info["peak_extra_bytes"]
        # The minimum, as noise from other processes only ever adds time.
        rows.append(Row(**named, seconds=entry["stats"]["min"], peak=peak))
    for entry in data.get("refused", ()):
        rows.append(Row(**{"refused": entry["reason"]}, **_without(entry, "reason"), **UNKNOWN))
    families: dict[str, Cases] = {}
    for row in rows:
        families.setdefault(row.family, {}).setdefault(row.case, []).append(row)
    return families


UNKNOWN: Mapping[str, Any] = {"kind": "", "size": {}}


def _without(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != key}


def base(rows: Iterable[Row]) -> Row | None:
    """What a case's ratios refer to: the unit if there is one, else the best method not ours."""
    timed = [row for row in rows if row.seconds is not None]
    units = [row for row in timed if row.kind == "unit"]
    others = units or [row for row in timed if row.kind != "ours"]
    return min(others, key=lambda row: row.seconds or 0.0, default=None)


def markdown(
    data: Mapping[str, Any], families: Mapping[str, Cases], plots: Mapping[str, Sequence[Path]]
) -> list[str]:
    """Lines of the report."""
    lines = ["# Benchmarks", "", *machine(data["machine_info"]), ""]
    for name, cases in families.items():
        lines += [f"## {name}", ""]
        lines += [f"![{name}]({path.name})" for path in plots.get(name, ())]
        short, full = summary(cases), details(cases)
        if short:
            full = ["<details><summary>All methods</summary>", "", *full, "", "</details>"]
        lines += ["", *short, "", *full, ""]
    return lines


def machine(info: Mapping[str, Any]) -> list[str]:
    """What the figures were measured on; nothing that changes from run to run."""
    ours = info.get("lapkernels", {})
    cpu = info.get("cpu", {})
    facts = {
        "CPU": f"{cpu.get('brand_raw', info.get('processor') or 'unknown')}, "
        f"{cpu.get('count', '?')} cores",
        "SIMD level of the kernels": ours.get("simd") or "none: reference backend",
        "device": ours.get("device", "cpu"),
        "backend": ours.get("backend"),
        "torch": ours.get("torch"),
        "threads": ours.get("threads"),
        "Python": info.get("python_version"),
    }
    return [f"- {name}: {value}" for name, value in facts.items()]


def summary(cases: Cases) -> list[str]:
    """Ours against the base, one line a case."""
    table = [
        ["case", "ours", "against", "time", "ratio", "our memory", "memory", "ratio", "not timed"]
    ]
    for case, rows in cases.items():
        ours = next((row for row in rows if row.kind == "ours" and row.seconds), None)
        against = base(rows)
        if ours is None or against is None:
            continue
        time_ratio, memory_ratio = ratios(ours, against)
        table.append(
            [
                *(case, duration(ours.seconds), against.method, duration(against.seconds)),
                *(time_ratio, memory(ours.peak), memory(against.peak), memory_ratio),
                # A ratio is worth less when the best competitor was refused: say so beside it.
                ", ".join(row.method for row in rows if row.refused),
            ]
        )
    return render(table) if len(table) > 1 else []


def details(cases: Cases) -> list[str]:
    """Every method of every case."""
    table = [["case", "method", "time", "ratio", "memory", "ratio", "error"]]
    for case, rows in cases.items():
        against = base(rows)
        for row in rows:
            if row.refused or against is None:
                table.append([case, row.method, row.refused or "", "", "", "", ""])
                continue
            time_ratio, memory_ratio = ratios(row, against)
            error = "" if row.error is None else f"{row.error:.0e}"
            cells = (duration(row.seconds), time_ratio, memory(row.peak), memory_ratio, error)
            table.append([case, row.method, *cells])
    return render(table)


def ratios(row: Row, against: Row) -> tuple[str, str]:
    """Time and memory of a method over those of the base."""
    if row.seconds is None or against.seconds is None:
        return "", ""
    peak = f"{row.peak / against.peak:.3g}" if row.peak is not None and against.peak else ""
    return f"{row.seconds / against.seconds:.3g}", peak


def duration(seconds: float | None) -> str:
    """With three digits, in a fitting unit."""
    if seconds is None:
        return ""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}"
    return ""


def memory(size: int | None) -> str:
    """In MB, to the resolution of the measurement."""
    return "" if size is None else f"{size / 1e6:.1f} MB"


def render(table: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; columns of figures to the right."""
    head, *body = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in table)
    rule = ["---" if name in ("case", "method", "against", "not timed") else "--:" for name in head]
    return ["| " + " | ".join(row) + " |" for row in (head, rule, *body)]


def plot(name: str, cases: Cases, out: Path) -> list[Path]:
    """Time and memory over resolution, one figure for each number of columns or activation."""
    figures: dict[str, dict[int, list[Row]]] = {}
    for row in (row for rows in cases.values() for row in rows):
        # Layers of a network have one resolution each: no sweep.
        if row.seconds is None or "inputs" not in row.size or row.size.get("layer"):
            continue
        variant = row.size.get("activation") or f"V{row.size['columns']}"
        figures.setdefault(variant, {}).setdefault(row.size["inputs"], []).append(row)
    paths = []
    for variant, panels in figures.items():
        if max(len({row.size["resolution"] for row in rows}) for rows in panels.values()) > 1:
            paths.append(_figure(name, variant, panels, out))
    return paths


def _figure(name: str, variant: str, panels: Mapping[int, list[Row]], out: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # A few panels, from the fewest channels to the most.
    channels = sorted(panels)
    steps = max(1, min(MOST_PANELS, len(channels)) - 1)
    shown = sorted({channels[i * (len(channels) - 1) // steps] for i in range(steps + 1)})
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
        axes[0, column].set_title(f"{c} channel{'s' if c > 1 else ''}", fontsize=10)
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
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(shown), frameon=False)
    title = variant.replace("V", "V = ")
    figure.suptitle(f"{name}, {title}")
    path = out / f"{name}-{variant}.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


if __name__ == "__main__":
    main()
