"""One table of whole networks: every quantity and network, ours, plain torch and all packages.

A cell has the time over that of a forward and backward pass, and the peak of extra memory, or why
there is none.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.rows import Cases, Row, base
from benchmarks.units import duration, memory, ratio, render

LEGEND = (
    "Times in forward and backward passes of the same network and batch, and peak extra memory. "
    "Plain torch is the best composition of torch's own functions. wrong: refused by the gate; "
    "raises: not supported; too large, too slow: not run at this size; –: not offered."
)


def network_table(families: Mapping[str, Cases]) -> list[str]:
    """Lines of Markdown; empty if no family is counted in units."""
    families = {name: cases for name, cases in families.items() if _units(cases)}
    if not families:
        return []
    everything = [row for cases in families.values() for rows in cases.values() for row in rows]
    torch = {row.method for row in everything if row.kind == "torch"}
    skipped = torch | {row.method for row in everything if row.kind in ("unit", "ours")}
    packages = sorted({row.method for row in everything} - skipped, key=str.lower)
    table = [
        ["quantity", "network", "forward and backward", "lapkernels", "plain torch", *packages]
    ]
    notes: dict[str, int] = {}
    for name, cases in families.items():
        for case, rows in cases.items():
            unit = base(rows)
            ours = next((row for row in rows if row.kind == "ours"), None)
            plain = min(
                (row for row in rows if row.method in torch),
                key=lambda row: row.seconds or float("inf"),
                default=None,
            )
            found = {row.method: row for row in rows}
            cells = [_cell(row, unit, notes) for row in (unit, ours, plain)]
            cells += [_cell(found.get(package), unit, notes) for package in packages]
            table.append([name, case, *cells])
    footnotes = [f"{number}. {reason}" for reason, number in notes.items()]
    return [*render(table), "", LEGEND, "", *footnotes]


def _units(cases: Cases) -> bool:
    return any(row.kind == "unit" for rows in cases.values() for row in rows)


def _cell(row: Row | None, unit: Row | None, notes: dict[str, int]) -> str:
    if row is None:
        return "–"
    if row.refused:
        word, _, reason = row.refused.partition(":")
        if not reason:
            return word
        word, reason = ("raises", row.refused[7:]) if word.startswith("raised ") else (word, reason)
        number = notes.setdefault(f"{row.method}: {_shortened(reason)}", len(notes) + 1)
        return f"{word} [{number}]"
    peak = f", {memory(row.peak)}" if row.peak is not None else ""
    if unit is None or row is unit:
        return duration(row.seconds) + peak
    return f"{ratio(row.seconds, unit.seconds)}×{peak}"


def _shortened(reason: str, length: int = 160) -> str:
    words = " ".join(reason.split())
    return words if len(words) <= length else words[: length - 3] + "..."
