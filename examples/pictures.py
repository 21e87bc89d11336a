"""One style for all pictures: fonts, sizes, colours of methods, and a line with the claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Okabe and Ito's colours, told apart by colour-blind readers too.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DATA, BAND = "#000000", "#E69F00"
# Wide pictures are shown as wide as a page of text.
DPI = 110
SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "image.cmap": "gray",
    "image.interpolation": "nearest",
    "lines.linewidth": 1.6,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
}


def figure(rows: int, columns: int, size: tuple[float, float], **settings: Any) -> Any:
    """A figure that needs no display, and its axes [rows, columns]; layout is constrained."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(SETTINGS)
    pyplot.rcParams["axes.prop_cycle"] = pyplot.cycler(color=PALETTE)
    settings = {"squeeze": False, "layout": "constrained", **settings}
    return pyplot.subplots(rows, columns, figsize=size, **settings)


def claim(drawing: Any, text: str) -> None:
    """What the picture shows, in a line above it."""
    drawing.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold")


def image(ax: Any, values: Any, title: str = "", left: str = "", **settings: Any) -> Any:
    """An image [H, W] or [1, H, W] without ticks, with what its row shows on its left."""
    flat = values[0] if values.ndim == 3 else values
    shown = ax.imshow(flat, **settings)
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set_visible(False)
    if title:
        ax.set_title(title)
    if left:
        ax.set_ylabel(left, rotation=0, ha="right", va="center")
    return shown


def bands(ax: Any, x: Any, mean: Any, deviation: Any, color: str = BAND) -> None:
    """A mean with one and two standard deviations, [N] each."""
    for times in (2, 1):
        low, high = mean - times * deviation, mean + times * deviation
        ax.fill_between(x, low, high, color=color, alpha=0.25, linewidth=0)
    ax.plot(x, mean, color=PALETTE[0])


def intervals(
    ax: Any, groups: Sequence[str], values: Mapping[str, Sequence[Sequence[float]]], **settings: Any
) -> None:
    """Points with their spread: ``values`` has for each name the repetitions of every group.

    The point is the mean, the bar the standard deviation; names differ in colour.
    """
    from statistics import fmean, stdev

    for number, (name, found) in enumerate(values.items()):
        across = [
            k + (number - (len(values) - 1) / 2) * 0.8 / len(values) for k in range(len(found))
        ]
        means = [fmean(each) for each in found]
        spreads = [stdev(each) if len(each) > 1 else 0.0 for each in found]
        color = PALETTE[number % len(PALETTE)]
        ax.errorbar(across, means, spreads, fmt="o", color=color, capsize=3, label=name, **settings)
    ax.set_xticks(range(len(groups)), groups)
    ax.set_xlim(-0.5, len(groups) - 0.5)
