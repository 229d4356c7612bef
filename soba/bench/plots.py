"""Pictures of results. matplotlib is imported when a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from soba._files import replacing


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
            fontweight="bold" if (row, column) == worst else "normal",
        )
    frame = plt.Rectangle(
        (worst[1] - 0.5, worst[0] - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=2
    )
    axes.add_patch(frame)
    figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    axes.set_title(title, pad=26)
    _save(figure, path)
    plt.close(figure)


def curves(
    path: Path,
    lines: dict[str, tuple[np.ndarray, np.ndarray]],
    *,
    title: str,
    x_label: str,
    y_label: str,
) -> None:
    """Named curves in one picture."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    for name, (x, y) in lines.items():
        axes.plot(x, y, label=name)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    _save(figure, path)
    plt.close(figure)


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


def _save(figure: Any, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:] or "png", dpi=150, bbox_inches="tight")
