"""Figures as words, and tables of them."""

from __future__ import annotations

from collections.abc import Sequence


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


def ratio(value: float | None, against: float | None) -> str:
    """With three digits, and no exponent."""
    if value is None or not against:
        return ""
    found = value / against
    return f"{found:.0f}" if found >= 1000 else f"{found:.3g}"


def render(table: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; columns of figures to the right."""
    head, *body = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in table)
    words = ("case", "method", "against", "not timed", "quantity", "network")
    rule = ["---" if name in words else "--:" for name in head]
    return ["| " + " | ".join(row) + " |" for row in (head, rule, *body)]
