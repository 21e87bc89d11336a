"""The demo's picture: inputs, reconstructions, and predictive standard deviations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

GAP = 0.22  # Between groups, in widths of an image.
FRAME = "#b0b0b0"


def draw(
    examples: Sequence[tuple[str, Tensor]], mean: Tensor, deviation: Tensor, path: Path
) -> Path | None:
    """Save the picture; None if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import LogNorm, Normalize
        from matplotlib.figure import Figure
    except ImportError:
        return None
    inputs = torch.cat([group for _, group in examples])
    widths = [1.0] * len(examples[0][1])
    for _, group in examples[1:]:
        widths += [GAP, *([1.0] * len(group))]
    columns = [index for index, width in enumerate(widths) if width == 1.0]
    plain = Normalize(0, 1)
    # Logarithmic: out of distribution the deviation grows by more than a linear scale can show.
    lowest = max(float(deviation.quantile(0.02)), 1e-6)
    spread = LogNorm(lowest, max(float(deviation.max()), 2 * lowest))
    rows = (
        ("input", inputs, "gray", plain),
        ("reconstruction", mean, "gray", plain),
        ("predictive std", deviation, "magma", spread),
    )

    figure = Figure(figsize=(1.0 * sum(widths) + 1.3, 3.9))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        3, len(widths), width_ratios=widths, wspace=0.08, hspace=0.08,
        left=0.045, right=0.93, top=0.92, bottom=0.08,
    )  # fmt: skip
    for row, (label, images, colours, norm) in enumerate(rows):
        shown = None
        for image, column in zip(images[:, 0], columns, strict=True):
            axis = figure.add_subplot(grid[row, column])
            shown = axis.imshow(image.numpy(), cmap=colours, norm=norm)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set(color=FRAME, linewidth=0.6)
            if column == 0:
                axis.set_ylabel(label, fontsize=9)
            if row == 2:
                axis.set_xlabel(f"mean {float(image.mean()):.3f}", fontsize=8)
        if row == 2 and shown is not None:
            box = grid[2, -1].get_position(figure)
            bar = figure.add_axes((0.94, box.y0, 0.010, box.height))
            figure.colorbar(shown, cax=bar).ax.tick_params(labelsize=8)
    first = 0
    for name, group in examples:
        box = grid[0, columns[first]].get_position(figure)
        figure.text(box.x0, box.y1 + 0.02, name, fontsize=10, fontweight="bold")
        first += len(group)
    figure.savefig(path, dpi=150)
    return path
