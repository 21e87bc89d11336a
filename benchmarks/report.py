"""Renders JSON files of the benchmarks to Markdown tables and plots.

python -m benchmarks.report benchmarks/results/latest.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.network_table import network_table
from benchmarks.plots import plot
from benchmarks.rows import Cases, Row, base, by_family
from benchmarks.units import duration, memory, ratio, render


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "json", type=Path, nargs="+", help="files written by pytest --benchmark-json, in order"
    )
    parser.add_argument("--out", type=Path, help="folder to write to (default: beside the first)")
    arguments = parser.parse_args(argv)
    out = arguments.out or arguments.json[0].parent
    out.mkdir(parents=True, exist_ok=True)
    for path in write(merged([json.loads(path.read_text()) for path in arguments.json]), out):
        print(path)


def merged(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Several runs on one machine as one."""
    machines = [machine(run["machine_info"]) for run in runs]
    if any(other != machines[0] for other in machines):
        raise ValueError("the files come from different machines or versions")
    joined = {
        key: [entry for run in runs for entry in run[key]] for key in ("benchmarks", "refused")
    }
    return {**runs[0], **joined}


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
    networks = network_table(families)
    lines += ["## Whole networks", "", *networks, ""] if networks else []
    for name, cases in families.items():
        lines += [f"## {name}", ""]
        lines += [f"![{name}]({path.name})" for path in plots.get(name, ())]
        # Whole networks are in the table above.
        units = any(row.kind == "unit" for rows in cases.values() for row in rows)
        short, full = [] if units else summary(cases), details(cases)
        if short or units:
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
    return ratio(row.seconds, against.seconds), ratio(row.peak, against.peak)


if __name__ == "__main__":
    main()
