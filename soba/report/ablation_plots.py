"""Pictures of ablations: what a setting is worth, a panel per feature file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from soba._files import replacing
from soba.report.method_looks import colour_of, line_style, title_of
from soba.report.plots import SMALLEST, pyplot
from soba.studies.ablate import ABLATIONS, Point


def figure(name: str, file: str, points: Sequence[Point], width: float = 4.8) -> Any:
    """One file's picture, so many inches wide: joined points, or dots."""
    plt = pyplot()
    drawn, axes = plt.subplots(figsize=(width, 3.2), layout="constrained")
    _draw(axes, name, file, points)
    return drawn


def write_pictures(folder: Path, name: str, points: dict[str, list[Point]]) -> list[Path]:
    """`NAME.png` and `NAME.svg`, a panel per file."""
    plt = pyplot()
    columns = min(3, len(points))
    lines = -(-len(points) // columns)
    size = (4.8 * columns, 3.4 * lines)
    drawn, panels = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axes, (file, file_points) in zip(panels.flat, points.items(), strict=False):
        _draw(axes, name, file, file_points)
    for axes in panels.flat[len(points) :]:
        axes.set_visible(False)
    paths = [folder / f"{name}.{form}" for form in ("png", "svg")]
    for path in paths:
        with replacing(path) as temporary:
            drawn.savefig(temporary, format=path.suffix[1:], dpi=150)
    plt.close(drawn)
    return paths


def _draw(axes: Any, name: str, file: str, points: Sequence[Point]) -> None:
    floor = next((point.mean for point in points if point.line == "zero-shot"), None)
    (_lines if ABLATIONS[name].ordered else _dots)(axes, name, points, floor)
    axes.set_title(file, fontsize=9, parse_math=False)
    axes.tick_params(labelsize=SMALLEST)
    axes.xaxis.label.set_size(SMALLEST)
    axes.yaxis.label.set_size(SMALLEST)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _lines(axes: Any, name: str, points: Sequence[Point], floor: float | None) -> None:
    labels = list(dict.fromkeys(p.setting for p in points if p.line != "zero-shot"))
    for line in dict.fromkeys(p.line for p in points if p.line != "zero-shot"):
        line_points = [p for p in points if p.line == line]
        axes.errorbar(
            [labels.index(p.setting) for p in line_points],
            [p.mean for p in line_points],
            [p.std for p in line_points],
            marker="o",
            markersize=4,
            capsize=2,
            linewidth=1.5,
            elinewidth=0.8,
            color=colour_of(line),
            label=title_of(line),
        )
    if floor is not None:
        axes.axhline(floor, **line_style("zero-shot"))
    paper_setting = ABLATIONS[name].paper
    axes.set_xticks(range(len(labels)), [f"{x}*" if x == paper_setting else x for x in labels])
    axes.set(xlabel=f"{ABLATIONS[name].varies}     * the paper's", ylabel="top-1 %")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=SMALLEST)


def _dots(axes: Any, name: str, points: Sequence[Point], floor: float | None) -> None:
    """Dots, not bars: a scale that shows the differences does not start at zero."""
    places = np.arange(len(points))[::-1]
    means, stds = np.array([p.mean for p in points]), np.array([p.std for p in points])
    high = float((means + stds).max())
    # What collapses is written at the edge: on one scale with it, the others would look alike.
    low = max(float((means - stds).min()), float(np.median(means)) - 25.0)
    margin = 0.05 * max(high - low, 1.0)
    methods = {(s.line, s.label): s.method for s in ABLATIONS[name].settings}
    for place, point in zip(places, points, strict=True):
        colour = colour_of(methods.get((point.line, point.setting), point.line))
        inside = point.mean >= low - margin
        if inside:
            axes.errorbar(
                point.mean, place, xerr=point.std, fmt="o", markersize=5, capsize=2, color=colour
            )
        axes.text(
            point.mean + point.std + margin / 2 if inside else low,
            place,
            f"{point.mean:.2f}" if inside else f"\u2190 {point.mean:.2f}",
            va="center",
            fontsize=SMALLEST,
        )
    axes.set_xlim(low - margin, high + 4 * margin)
    axes.set_ylim(-0.6, len(points) - 0.4)
    if floor is not None:
        axes.axvline(floor, **line_style("zero-shot"))
    paper_setting = ABLATIONS[name].paper
    labels = [f"{p.setting}*" if p.setting == paper_setting else p.setting for p in points]
    axes.set_yticks(places, labels)
    axes.set_xlabel("top-1 %     * the paper's")
    axes.grid(alpha=0.25)
