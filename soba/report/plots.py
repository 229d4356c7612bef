"""Pictures of results. matplotlib is imported when a picture is asked for."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from soba._files import replacing

SMALLEST = 8  # points, of any text in a page's figures
_LEGEND_ROW = 0.165  # inches
_LETTERS = 16  # to an inch, of the smallest text


def heat_map(
    path: Path,
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    label: str,
) -> None:
    """Gains and losses as coloured cells with their numbers; the worst cell is framed."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(2.2 + 1.1 * len(columns), 1.4 + 0.38 * len(rows)))
    # Losses matter more than gains: the colours saturate at the larger loss, 2 points at least.
    reach = max(2.0, -float(np.nanmin(values)), float(np.nanmax(values)) / 2)
    image = axes.imshow(values, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    worst = np.unravel_index(np.nanargmin(values), values.shape)
    for (row, column), value in np.ndenumerate(values):
        strong = abs(value) > 0.6 * reach
        axes.text(
            column,
            row,
            f"{value:+.1f}",
            ha="center",
            va="center",
            color="white" if strong else "black",
        )
    frame = plt.Rectangle(
        (worst[1] - 0.5, worst[0] - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=2
    )
    axes.add_patch(frame)
    figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    axes.set_title(title, pad=26)
    save(figure, path)
    plt.close(figure)


def curves(
    path: Path,
    lines: dict[str, tuple[np.ndarray, np.ndarray]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Named curves in one picture; `styles` are how to draw them, for curves of methods."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    for name, (x, y) in lines.items():
        axes.plot(x, y, **(styles[name] if styles else {"label": name}))
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save(figure, path)
    plt.close(figure)


def panel(
    title: str,
    size: tuple[float, float],
    *,
    left: float = 0.62,
    bottom: float = 0.45,
    top: float = 0.3,
) -> tuple[Any, Any]:
    """A figure of a page: (figure, axes); margins are in inches, as the size is.

    They are given, since to find them doubles the time of drawing.
    """
    width, height = size
    figure = pyplot().figure(figsize=size)
    axes = figure.add_axes(
        (left / width, bottom / height, 1 - (left + 0.15) / width, 1 - (bottom + top) / height)
    )
    axes.set_title(title, fontsize=9, parse_math=False)
    axes.tick_params(labelsize=SMALLEST)
    axes.xaxis.label.set_size(SMALLEST)
    axes.yaxis.label.set_size(SMALLEST)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def lines_panel(
    lines: Mapping[str, tuple[np.ndarray, np.ndarray]],
    styles: Mapping[str, Mapping[str, Any]],
    *,
    width: float,
    title: str,
    x_label: str,
    y_label: str,
) -> Any:
    """Lines over 0 to 100 per cent, named below the axes."""
    below = 0.5 + legend_height(lines, width)
    figure, axes = panel(title, (width, 2.3 + below), bottom=below)
    for label, (x, y) in lines.items():
        axes.plot(x, y, **styles[label])
    axes.set(xlim=(0, 100), xlabel=x_label, ylabel=y_label)
    axes.locator_params(axis="y", nbins=6)  # fewer numbers are shorter, too
    legend_below(figure, axes, width)
    return figure


def legend_below(figure: Any, axes: Any, width: float) -> None:
    """The axes' legend along the lower edge of a figure of so many inches."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        [_wrapped(label, width) for label in labels],
        loc="lower center",
        ncols=_legend_columns(labels, width),
        frameon=False,
        fontsize=SMALLEST,
        borderaxespad=0.2,
        columnspacing=1.4,
        handlelength=2.8,
        labelspacing=0.3,
    )


def legend_height(labels: Collection[str], width: float) -> float:
    """Inches that `legend_below` takes."""
    lines = sum(_wrapped(label, width).count("\n") + 1 for label in labels)
    return _LEGEND_ROW * -(-lines // _legend_columns(labels, width))


def _legend_columns(labels: Collection[str], width: float) -> int:
    """As many columns as the longest label leaves room for."""
    entry = max(map(len, labels), default=0) + 8  # its line, and the gap to the next
    return max(1, min(len(labels), int(_LETTERS * width) // entry))


def _wrapped(label: str, width: float) -> str:
    return textwrap.fill(label, int(_LETTERS * width) - 8)


def check_pictures() -> None:
    """Find out before the work, not after it, that no picture can be drawn."""
    pyplot()


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'soba-tta[bench]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path) -> None:
    """Write a picture whole, in the format that its name says."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:] or "png", dpi=150, bbox_inches="tight")
