"""The report's pictures: small figures of one size, to stand side by side or below each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from soba.bench.demo_report import COLOURS
from soba.bench.evaluate import Record
from soba.bench.metrics import mean_and_std
from soba.bench.plots import pyplot
from soba.bench.tables import Row, Table
from soba.datasets import GROUPS

SIZE = (4.8, 3.5)  # inches, of every figure
_MOST_LINES = 8
_SPARE = ("#d1495b", "#3d7a37", "#8c6239", "#d97fb4", "#5f6caf", "#7a8c1e", "#333333")


def radar(table: Table) -> Any:
    """A measured method a polygon, a data set an axis (the paper's Fig. 1c).

    Each axis has a scale of its own, from a little below its worst method to its best: data sets
    differ by tens of points, methods by a few.
    """
    plt = pyplot()
    rows, colours = _whole(table), _colours(table.fair)
    values = np.array([[c.mean for c in r.cells[: len(table.datasets)] if c] for r in rows])
    low, high = values.min(axis=0), values.max(axis=0)
    reach = (values - low) / np.maximum(high - low, 1e-9)
    reach = 0.25 + 0.75 * reach  # the worst one is a polygon too, not a dot
    angles = np.linspace(0, 2 * np.pi, len(table.datasets), endpoint=False)
    # Placed by hand: the names around the circle need room that no layout engine leaves them.
    figure = plt.figure(figsize=(SIZE[0], 1.2 * SIZE[1]))
    axes = figure.add_axes((0.24, 0.24, 0.52, 0.6), projection="polar")
    axes.set_theta_offset(np.pi / 2)
    axes.set_theta_direction(-1)
    for row, radii in zip(rows, reach, strict=True):
        axes.plot(
            np.append(angles, angles[0]),
            np.append(radii, radii[0]),
            color=colours[row.label],
            linewidth=2 if row.method.startswith("soba") else 1.2,
            label=row.label,
        )
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0.25, 0.625, 1.0], [])
    names = [
        f"{_short(name)}\n{a:.1f} to {b:.1f}"
        for name, a, b in zip(table.datasets, low, high, strict=True)
    ]
    axes.set_xticks(angles, names, fontsize=8)
    for label, angle in zip(axes.get_xticklabels(), angles, strict=True):
        side = np.sin(angle)
        label.set_horizontalalignment(
            "left" if side > 0.1 else "right" if side < -0.1 else "center"
        )
    axes.spines["polar"].set_visible(False)
    axes.grid(alpha=0.35)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=_columns(labels), **_LEGEND)
    return figure


def can_be_radar(table: Table) -> bool:
    """At least three axes, and two methods that have them all."""
    return len(table.datasets) >= 3 and len(_whole(table)) >= 2


Members = dict[str, list[Record]]  # label of a row -> its records


def over_stream(members: Members, title: str) -> Any:
    """Accuracy of each twentieth of the stream, mean over seeds (and data sets, if several)."""
    figure, axes = _lines_panel(members, "accuracy_over_stream", title)
    axes.set(xlabel="% of the stream", ylabel="top-1 %")
    return figure


def over_coverage(members: Members, title: str) -> Any:
    """Accuracy where only the surest answers count."""
    figure, axes = _lines_panel(members, "accuracy_at_coverage", title)
    axes.set(xlabel="% of the images answered, surest first", ylabel="top-1 % of them")
    return figure


def calibration(members: Members, title: str) -> Any:
    """Expected calibration error per method; whiskers: standard deviation over all its runs."""
    labels = list(members)[::-1]  # bars are drawn from the bottom up
    figure, axes = _panel(title, left=min(0.5, 0.05 + 0.0135 * max(map(len, labels))))
    errors = [[record["calibration_error"] for record in members[label]] for label in labels]
    means, stds = np.array([mean_and_std(own) for own in errors]).T
    colours = _colours(members)
    axes.barh(
        range(len(labels)),
        means,
        0.68,
        xerr=stds,
        color=[colours[label] for label in labels],
        error_kw={"elinewidth": 0.8},
    )
    longest = max(1e-3, float((means + stds).max()))
    for place, (mean, std) in enumerate(zip(means, stds, strict=True)):
        axes.text(mean + std + 0.015 * longest, place, f"{mean:.1f}", va="center", fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_xlim(0, 1.14 * longest)
    axes.set_xlabel("expected calibration error, %")
    axes.grid(visible=False)
    return figure


def quoted_set(file: str) -> str | None:
    """The fine-grained set that a feature file is of, if its name has the set and ViT-B/16.

    >>> quoted_set("dtd-ViT-B-16"), quoted_set("dtd-RN50"), quoted_set("my-ViT-B-16")
    ('dtd', None, None)
    """
    words = re.split(r"[^a-z0-9]+", re.sub(r"vit[-_/ ]?b[-_/ ]?16", "vitb16", file.lower()))
    found = [name for name in GROUPS["cross"] if name in words]
    return found[0] if "vitb16" in words and len(found) == 1 else None


def add_quoted(figure: Any, values: dict[str, float]) -> None:
    """The paper's line into the picture of an ablation: setting -> its number."""
    [axes] = figure.axes
    labels = [tick.get_text().removesuffix("*") for tick in axes.get_xticklabels()]
    places = [labels.index(setting) for setting in values if setting in labels]
    drawn = [value for setting, value in values.items() if setting in labels]
    axes.plot(places, drawn, ":", marker="x", color="#d1495b", label="SOBA, quoted †")
    axes.legend(frameon=False, fontsize=8)


_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 7.5}


def _panel(title: str, *, left: float = 0.125, bottom: float = 0.15) -> tuple[Any, Any]:
    """A figure of the usual size; its margins are given, since finding them doubles the time."""
    figure = pyplot().figure(figsize=SIZE)
    axes = figure.add_axes((left, bottom, 0.97 - left, 0.92 - bottom))
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _lines_panel(members: Members, field: str, title: str) -> tuple[Any, Any]:
    """Lines over per cent, one per row, named below."""
    drawn = list(_lines(members, field))
    labels = [line["label"] for line, _ in drawn]
    rows = -(-len(labels) // _columns(labels))
    figure, axes = _panel(title, bottom=0.15 + 0.052 * rows)
    # A twentieth of the stream is drawn at its middle; a share of the answers at its end.
    shift = 0.5 if field == "accuracy_over_stream" else 1.0
    for line, values in drawn:
        axes.plot(100 * (np.arange(len(values)) + shift) / len(values), values, **line)
    axes.set_xlim(0, 100)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="lower center", ncols=_columns(labels), **_LEGEND
    )
    return figure, axes


def _columns(labels: list[str]) -> int:
    """As many columns as the longest label leaves room for."""
    return max(1, min(4, 64 // (max(map(len, labels), default=0) + 5)))


def _lines(members: Members, field: str) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """(how to draw it, mean over its records) per row; of very many rows, the first few."""
    colours = _colours(members)
    for label in list(members)[:_MOST_LINES]:
        found = [record[field] for record in members[label] if record.get(field)]
        if not found:
            continue
        points = max(map(len, found))
        mean = np.mean([values for values in found if len(values) == points], axis=0)
        strong = members[label][0]["method"].startswith("soba")
        yield (
            {"color": colours[label], "label": label, "linewidth": 1.8 if strong else 1.2},
            mean,
        )


def _whole(table: Table) -> list[Row]:
    """Rows of our own with every data set, not too many, and none that saw the answers."""
    return [
        row
        for row in table.rows
        if row.kind == "ours"
        and row.label in table.fair
        and not any(cell is None or cell.on_test for cell in row.cells)
    ][:_MOST_LINES]


def _colours(members: Members) -> dict[str, str]:
    """A method's own colour for its first row, spare ones for what has none."""
    found: dict[str, str] = {}
    spare = iter(_SPARE * (1 + len(members) // len(_SPARE)))
    for label, records in members.items():
        own = COLOURS.get(records[0]["method"])
        found[label] = next(spare) if own is None or own in found.values() else own
    return found


def _short(name: str) -> str:
    short = name.replace("imagenet-", "IN-", 1).removeprefix("icons-")
    return short if len(short) <= 16 else short[:15] + "…"
