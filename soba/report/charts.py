"""The report's pictures, each as wide as it is asked to be (in inches)."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import numpy as np

from soba.adapt.soba import SOBA
from soba.bench.metrics import mean_and_std
from soba.bench.record import Record
from soba.datasets import GROUPS
from soba.report.method_looks import colour_of, line_styles
from soba.report.plots import (
    SMALLEST,
    legend_below,
    legend_height,
    lines_panel,
    panel,
    pyplot,
)
from soba.report.tables import Row, Table

Members = dict[str, list[Record]]  # label of a row -> its records
_MOST_LINES = 8


def radar(table: Table, width: float) -> Any:
    """A measured method a polygon, a data set an axis (the paper's Fig. 1c).

    Each axis has a scale of its own, from a little below its worst method to its best: data sets
    differ by tens of points, methods by a few.
    """
    rows = _whole(table)
    styles = _styles({row.label: table.fair[row.label] for row in rows})
    values = np.array([[c.mean for c in r.cells[: len(table.datasets)] if c] for r in rows])
    low, high = values.min(axis=0), values.max(axis=0)
    reach = (values - low) / np.maximum(high - low, 1e-9)
    reach = 0.25 + 0.75 * reach  # the worst one is a polygon too, not a dot
    angles = np.linspace(0, 2 * np.pi, len(table.datasets), endpoint=False)
    # Placed by hand: the names around the circle need room that no layout engine leaves them.
    circle = min(width - 2.0, 3.4)
    below = 0.6 + legend_height(styles, width)
    height = circle + below + 0.5
    figure = pyplot().figure(figsize=(width, height))
    axes = figure.add_axes(
        ((width - circle) / 2 / width, below / height, circle / width, circle / height),
        projection="polar",
    )
    axes.set_theta_offset(np.pi / 2)
    axes.set_theta_direction(-1)
    for row, radii in zip(rows, reach, strict=True):
        axes.plot(np.append(angles, angles[0]), np.append(radii, radii[0]), **styles[row.label])
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0.25, 0.625, 1.0], [])
    names = [
        f"{_short(name)}\n{a:.1f} to {b:.1f}"
        for name, a, b in zip(table.datasets, low, high, strict=True)
    ]
    axes.set_xticks(angles, names, fontsize=SMALLEST)
    for label, angle in zip(axes.get_xticklabels(), angles, strict=True):
        side = np.sin(angle)
        label.set_horizontalalignment(
            "left" if side > 0.1 else "right" if side < -0.1 else "center"
        )
    axes.spines["polar"].set_visible(False)
    axes.grid(alpha=0.35)
    legend_below(figure, axes, width)
    return figure


def can_be_radar(table: Table) -> bool:
    """At least three axes, and two methods that have them all."""
    return len(table.datasets) >= 3 and len(_whole(table)) >= 2


def over_stream(members: Members, title: str, width: float) -> Any:
    """Accuracy of each twentieth of the stream, mean over seeds (and data sets, if several)."""
    return lines_panel(
        _lines(members, "accuracy_over_stream", shift=0.5),  # drawn at its middle
        _styles(members),
        width=width,
        title=title,
        x_label="% of the stream",
        y_label="top-1 %",
    )


def over_coverage(members: Members, title: str, width: float) -> Any:
    """Accuracy where only the surest answers count."""
    return lines_panel(
        _lines(members, "accuracy_at_coverage", shift=1.0),
        _styles(members),
        width=width,
        title=title,
        x_label="% of the images answered, surest first",
        y_label="top-1 % of them",
    )


def calibration(members: Members, title: str, width: float) -> Any:
    """Expected calibration error per method; whiskers: standard deviation over all its runs."""
    labels = list(members)[::-1]  # bars are drawn from the bottom up
    names = [textwrap.fill(label, int(8 * width)) for label in labels]  # half the width at most
    longest_line = max(len(line) for name in names for line in name.splitlines())
    lines = sum(name.count("\n") + 1 for name in names)
    figure, axes = panel(title, (width, 0.8 + max(1.4, 0.26 * lines)), left=0.2 + longest_line / 15)
    errors = [[record.calibration_error for record in members[label]] for label in labels]
    means, stds = np.array([mean_and_std(row_errors) for row_errors in errors]).T
    axes.barh(
        range(len(labels)),
        means,
        0.68,
        xerr=stds,
        color=[colour_of(members[label][0].method) for label in labels],
        error_kw={"elinewidth": 0.8, "ecolor": "#888"},
    )
    longest = max(1e-3, float((means + stds).max()))
    for place, (mean, std) in enumerate(zip(means, stds, strict=True)):
        end = mean + std + 0.015 * longest
        axes.text(end, place, f"{mean:.1f}", va="center", fontsize=SMALLEST)
    axes.set_yticks(range(len(labels)), names, fontsize=SMALLEST)
    axes.set_xlim(0, 1.14 * longest)
    axes.set_xlabel("expected calibration error, %")
    axes.grid(visible=False)
    return figure


def quoted_set(file: str) -> str | None:
    """The fine-grained set that a feature file is of, if its name has the set and ViT-B/16.

    Examples
    --------
    >>> quoted_set("dtd-ViT-B-16"), quoted_set("dtd-RN50"), quoted_set("my-ViT-B-16")
    ('dtd', None, None)
    """
    words = re.split(r"[^a-z0-9]+", re.sub(r"vit[-_/ ]?b[-_/ ]?16", "vitb16", file.lower()))
    sets = [name for name in GROUPS["cross"] if name in words]
    return sets[0] if "vitb16" in words and len(sets) == 1 else None


def add_quoted(figure: Any, values: dict[str, float]) -> None:
    """The paper's line into the picture of an ablation: setting -> its number."""
    [axes] = figure.axes
    labels = [tick.get_text().removesuffix("*") for tick in axes.get_xticklabels()]
    places = [labels.index(setting) for setting in values if setting in labels]
    drawn = [value for setting, value in values.items() if setting in labels]
    axes.plot(
        places, drawn, ":", marker="x", color=colour_of(SOBA.card.name), label="SOBA, quoted †"
    )
    axes.legend(frameon=False, fontsize=SMALLEST)


def _lines(
    members: Members, field: str, *, shift: float
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Label -> (per cent, mean over its records); of very many rows, the first few."""
    lines = {}
    for label in list(members)[:_MOST_LINES]:
        curves = [getattr(record, field) for record in members[label] if getattr(record, field)]
        if curves:
            points = max(map(len, curves))
            mean = np.mean([values for values in curves if len(values) == points], axis=0)
            lines[label] = (100 * (np.arange(points) + shift) / points, mean)
    return lines


def _whole(table: Table) -> list[Row]:
    """Rows of our own with every data set, not too many, and none that saw the answers."""
    return [
        row
        for row in table.rows
        if row.kind == "ours"
        and row.label in table.fair
        and not any(cell is None or cell.on_test for cell in row.cells)
    ][:_MOST_LINES]


def _styles(members: Members) -> dict[str, dict[str, Any]]:
    return line_styles({label: records[0].method for label, records in members.items()})


def _short(name: str) -> str:
    short = name.replace("imagenet-", "IN-", 1).removeprefix("icons-")
    return short if len(short) <= 16 else short[:15] + "…"
