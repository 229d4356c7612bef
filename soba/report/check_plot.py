"""`soba check` as a picture: the verdict, the accuracies with their intervals, what is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from soba.report.method_looks import colour_of, title_of
from soba.report.plots import pyplot, save
from soba.studies.check import INTERVAL, Checked, Range

_VERDICT = {"yes": "#1a7f4b", "no": "#c0392b", "too few to tell": "#8a6d00"}
_NOT_LABELLED = "#c9ced6"


def check_plot(path: Path, checked: Checked, *, title: str, verdict: str) -> None:
    """Draw it; `verdict` is the sentence that the command prints."""
    plt, shares = pyplot(), checked.tally.differ > 0
    figure, axes = plt.subplots(
        2 if shares else 1,
        1,
        figsize=(7.6, 4.3 if shares else 2.9),
        height_ratios=(2.1, 1.0) if shares else (1.0,),
        layout="constrained",
        squeeze=False,
    )
    figure.suptitle(verdict, color=_VERDICT[checked.verdict], fontsize=11.5, fontweight="bold")
    _draw_scores(axes[0, 0], checked, title)
    if shares:
        _draw_shares(axes[1, 0], checked)
    save(figure, path)
    plt.close(figure)


def _draw_scores(axes: Any, checked: Checked, title: str) -> None:
    """Accuracies side by side; where no label tells them, the gain alone."""
    gain, is_known = checked.gain, checked.gain_is_known
    rows: list[tuple[str, Range, str]] = [("gain", gain, _VERDICT[checked.verdict])]
    if checked.zero_shot is not None and checked.adapted is not None and is_known:
        rows = [
            (title_of("zero-shot"), checked.zero_shot, colour_of("zero-shot")),
            (title_of("soba+"), checked.adapted, colour_of("soba+")),
        ]
        title += f"; gain {gain.estimate:+.1f} ({gain.low:+.1f} to {gain.high:+.1f})"
    axes.set_title(title, fontsize=9, parse_math=False)
    for place, (name, value, colour) in enumerate(rows):
        is_gain = name == "gain"
        ends = [[value.estimate - value.low], [value.high - value.estimate]]
        marker = "o" if is_known else "none"  # without labels no place in the range is likelier
        axes.errorbar(
            value.estimate, place, xerr=ends, fmt=marker, color=colour, capsize=5, linewidth=2.2
        )
        sign = "+.1f" if is_gain else ".1f"
        between = f"{value.low:{sign}} to {value.high:{sign}}"
        text = f"{value.estimate:{sign}}  ({between})" if is_known else f"anything from {between}"
        axes.annotate(
            text,
            (value.estimate, place),
            (0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=colour,
        )
    _lay_out_scores(axes, rows)


def _lay_out_scores(axes: Any, rows: Sequence[tuple[str, Range, str]]) -> None:
    is_gain = len(rows) == 1
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.75)
    low, high = min(r.low for _, r, _ in rows), max(r.high for _, r, _ in rows)
    margin = max(0.35 * (high - low), 3.0)  # room for the numbers above short intervals
    axes.set_xlim(low - margin, high + margin)
    if is_gain:
        axes.axvline(0.0, color="#667085", linewidth=1, zorder=0)
    else:  # there is room above 100, but nothing to read there
        axes.set_xticks([tick for tick in axes.get_xticks() if low - margin <= tick <= 100.0])
    points = "points gained" if is_gain else f"top-1 %, with {100 * INTERVAL:.0f}% intervals"
    axes.set_xlabel(points, fontsize=9)
    axes.grid(axis="x", alpha=0.3)
    _bare(axes, ("top", "right"))


def _draw_shares(axes: Any, checked: Checked) -> None:
    """The images that are answered differently, by what the labels say of them."""
    counts = checked.tally
    axes.set_title(
        f"answered differently: {counts.differ} of {counts.images} images, which decide",
        fontsize=9,
        loc="left",
    )
    parts: Sequence[tuple[str, int, str]] = (
        ("SOBA+ right", counts.won, colour_of("soba+")),
        ("zero-shot right", counts.lost, colour_of("zero-shot")),
        ("neither", counts.neither, "#c98a2b"),
        ("not labelled", counts.open, _NOT_LABELLED),
    )
    left = 0
    for name, count, colour in parts:
        axes.barh(0, count, left=left, color=colour, label=f"{name}: {count}", height=0.5)
        left += count
    axes.set_xlim(0, max(counts.differ, 1))
    axes.set_yticks([])
    axes.tick_params(labelsize=8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _bare(axes, ("top", "right", "left"))
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.45), ncols=4, frameon=False, fontsize=8.5
    )


def _bare(axes: Any, sides: Sequence[str]) -> None:
    for side in sides:
        axes.spines[side].set_visible(False)
