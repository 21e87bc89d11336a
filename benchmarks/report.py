"""Renders a JSON file of the benchmarks to Markdown tables and plots.

python -m benchmarks.report benchmarks/results/latest.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots import plot
from benchmarks.rows import Cases, Row, base, by_family


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


def markdown(
    data: Mapping[str, Any], families: Mapping[str, Cases], plots: Mapping[str, Sequence[Path]]
) -> list[str]:
    """Lines of the report."""
    lines = ["# Benchmarks", "", *machine(data["machine_info"]), ""]
    for name, cases in families.items():
        lines += [f"## {name}", ""]
        lines += [f"![{name}]({path.name})" for path in plots.get(name, ())]
        short, full = networks(cases) or summary(cases), details(cases)
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


def networks(cases: Cases) -> list[str]:
    """All methods on whole networks, one line a case; empty if nothing is counted in units.

    A cell has the time over that of a forward and backward pass, and the peak of extra memory.
    """
    everything = [row for rows in cases.values() for row in rows]
    units = dict.fromkeys(row.method for row in everything if row.kind == "unit")
    if not units:
        return []
    # Those that were refused everywhere have no kind, and come last.
    rank = {"ours": 0, "torch": 1, "peer": 2}
    others = sorted(
        dict.fromkeys(row.method for row in everything if row.method not in units),
        key=lambda name: min(rank.get(row.kind, 3) for row in everything if row.method == name),
    )
    table = [["case", *units, *others]]
    for case, rows in cases.items():
        against, found = base(rows), {row.method: row for row in rows}
        cells = [_cell(found.get(name), against) for name in (*units, *others)]
        table.append([case, *cells])
    return [*render(table), "", NETWORKS_LEGEND]


NETWORKS_LEGEND = (
    "Times in forward and backward passes of the same network and batch, and peak extra memory; "
    "wrong: refused by the gate; raises: not supported; –: not run, as it would take minutes or "
    "more memory than the machine has, or is not installed."
)


def _cell(row: Row | None, against: Row | None) -> str:
    if row is None:
        return "–"
    if row.refused:
        return row.refused.split(":")[0].split()[0].replace("raised", "raises")
    peak = f", {memory(row.peak)}" if row.peak is not None else ""
    if row.kind == "unit" or against is None:
        return duration(row.seconds) + peak
    return f"{ratios(row, against)[0]}×{peak}"


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


if __name__ == "__main__":
    main()
