"""Answers on the screen."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from rich.table import Table

from soba.answers import Answer
from soba.cli._common import out, shown


class AnswerTable:
    """The first answers as a table, and how many of each there are."""

    def __init__(self, most: int = 20) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._table = Table(box=None, pad_edge=False)
        for column in ("image", "answer", "", "zero-shot", ""):
            justify: Literal["left", "right"] = "left" if column else "right"
            self._table.add_column(column, justify=justify, overflow="fold")

    def add(self, answer: Answer) -> None:
        if answer.error:  # these are named in the end
            return
        self._counts[answer.label] += 1
        if self._table.row_count == self._most:
            return
        plain = shown(answer.zero_shot)
        self._table.add_row(
            shown(answer.image),
            f"[bold]{shown(answer.label)}[/]",
            f"{answer.probability:.0%}",
            plain if answer.zero_shot != answer.label else f"[dim]{plain}[/]",
            f"{answer.zero_shot_probability:.0%}",
        )

    def close(self) -> None:
        if not self._counts:
            return
        out.print(self._table)
        more = self._counts.total() - self._table.row_count
        if more:
            common = self._counts.most_common(12)
            counts = ", ".join(f"{shown(label)} {count}" for label, count in common)
            rest = "" if len(self._counts) <= 12 else f", and {len(self._counts) - 12} classes more"
            out.print(f"... and {more} more. {counts}{rest}", highlight=False)
