"""The tables of `soba bench` in the terminal: data sets down, methods across, since few are wide.

They are drawn from the same `soba.report.tables.Table` as those of `soba report`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table as Drawn
from rich.text import Text

from soba.report.formats import ON_TEST, QUOTED, notes
from soba.report.method_looks import title_of
from soba.report.tables import Cell, Row, Table
from soba.studies import efficiency


def drawn(table: Table, width: int) -> Iterator[RenderableType]:
    """What was measured, the paper's numbers beside it, and what must be known of both.

    `width` is the terminal's.
    """
    room = width - 4 - max(map(len, table.columns))
    yield from _measured(table, room)
    yield from _beside_the_papers(table, room)
    yield Text(" ".join(notes(table)), style="dim")
    saw = [
        row.label
        for row in table.rows
        if row.kind == "ours" and any(cell and cell.on_test for cell in row.cells)
    ]
    if saw:
        yield Text.from_markup(
            f"[bold red]warning:[/] [red]red numbers ({ON_TEST}) were tuned on the test labels "
            f"they are scored with ({escape(', '.join(saw))}): they are not results.[/]"
        )


def bold_best(
    texts: Iterable[str],
    values: Sequence[float],
    *,
    digits: int = 2,
    best: Callable[[Iterable[float]], float] = max,
) -> list[str]:
    """The cells of a row, the best of them bold; equal digits are equally good.

    >>> bold_best(["1.00", "2.00", "2.00"], [1.0, 2.0, 2.001])
    ['1.00', '[bold]2.00[/]', '[bold]2.00[/]']
    """
    printed = [round(value, digits) for value in values]
    winner = best(printed)
    return [
        f"[bold]{text}[/]" if value == winner else text
        for text, value in zip(texts, printed, strict=True)
    ]


def costs(measured: efficiency.Measured) -> Drawn:
    """What each method costs, and the paper's runtimes."""
    table = Drawn(
        title=escape(measured.title),
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,  # 80 columns are enough for all numbers then
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    table.caption = f"{efficiency.RATIOS} {QUOTED} {efficiency.QUOTED_FROM}"
    for place, heading in enumerate(efficiency.HEADINGS):
        marked = f"{heading} {QUOTED}" if heading in efficiency.QUOTED_HEADINGS else heading
        table.add_column(marked, justify="right" if place else "left", no_wrap=not place)
    for cost in measured.costs:
        method, *numbers = efficiency.shown(cost)
        table.add_row(title_of(method), *numbers)
    return table


def _measured(table: Table, width: int) -> Iterator[RenderableType]:
    rows = [row for row in table.rows if row.kind == "ours"]
    columns = {row.label: [_cell(cell, row, table) for cell in row.cells] for row in rows}
    return _pieces(f"{table.title}: top-1 %", table, columns, width // 14)


def _beside_the_papers(table: Table, width: int) -> Iterator[RenderableType]:
    """Ours, the paper's and the difference, for the methods that have one."""
    columns = {}
    for place, row in enumerate(table.rows):
        if row.kind == "difference":  # which follows ours and the quoted one
            ours, theirs = table.rows[place - 2 : place]
            cells = zip(ours.cells, theirs.cells, row.cells, strict=True)
            columns[ours.label] = [_side_by_side(*three) for three in cells]
    title = f"ours | quoted from the paper {QUOTED} | difference"
    return _pieces(title, table, columns, width // 25)


def _pieces(
    title: str, table: Table, columns: dict[str, list[str]], across: int
) -> Iterator[RenderableType]:
    """Some methods at a time: squeezed into a narrow terminal, numbers would be cut off."""
    if columns:
        yield Text(title, style="italic")
    labels, across = list(columns), max(1, across)
    for start in range(0, len(labels), across):
        piece = labels[start : start + across]
        rich_table = Drawn()
        rich_table.add_column("data set", no_wrap=True)
        for label in piece:
            rich_table.add_column(escape(label), justify="right")
        for place, name in enumerate(table.columns):
            if place == len(table.datasets):
                rich_table.add_section()
            rich_table.add_row(escape(name), *(columns[label][place] for label in piece))
        yield rich_table


def _cell(cell: Cell | None, row: Row, table: Table) -> str:
    if cell is None:
        return ""
    text = f"{cell.mean:.2f}"
    if cell.on_test:
        text = f"[red]{text} {ON_TEST}[/]"
    text = {1: f"[bold]{text}[/]", 2: f"[underline]{text}[/]"}.get(cell.rank, text)
    if cell.std is not None:
        text += f" [dim]±{cell.std:.2f}[/]"
    return f"{text} [dim](of {cell.runs})[/]" if table.is_short(row, cell) else text


def _side_by_side(ours: Cell | None, theirs: Cell | None, gap: Cell | None) -> str:
    our_score = "-" if ours is None else f"{ours.mean:.2f}"
    if ours is not None and ours.on_test:
        our_score = f"[red]{our_score} {ON_TEST}[/]"
    their_score = "-" if theirs is None else f"[italic]{theirs.mean:.2f}[/]"
    return f"{our_score} | {their_score}" + ("" if gap is None else f" | {gap.mean:+.2f}")
