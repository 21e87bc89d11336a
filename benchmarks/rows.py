"""A JSON file of the benchmarks as rows: one method in one case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


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
