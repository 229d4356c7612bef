"""Tables as Markdown, LaTeX (booktabs) and HTML: best bold, second underlined, quoted marked."""

from __future__ import annotations

import html
from collections.abc import Iterable

from soba import _page as page
from soba.report.remarks import remarks
from soba.report.tables import Cell, Row, Table

QUOTED = "†"  # quoted from the paper
ON_TEST = "‡"  # tuned on test labels

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def notes(table: Table) -> list[str]:
    """What a reader must know of this table, in plain words."""
    orders = f"over {table.runs} orders" if table.runs > 1 else "of one order"
    spread = ", with the standard deviation" if table.runs > 1 else ""
    sentences = [f"Top-1 accuracy in percent, mean {orders}{spread}."]
    if table.joined:
        sentences.append("All domains are one stream; each is scored by itself.")
    if any(table.is_short(row, cell) for row in table.rows for cell in row.cells):
        sentences.append("A cell with fewer orders says so.")
    if any(row.kind == "quoted" for row in table.rows):
        sentences.append(
            f"{QUOTED} quoted from the SOBA paper, not measured here; the difference is ours less "
            "quoted."
        )
    if any(row.kind == "quoted" and row.method == "zero-shot" for row in table.rows):
        sentences.append("The quoted zero-shot row used other prompts.")
    return sentences + remarks(table)


def markdown(table: Table) -> str:
    """A pipe table under a heading.

    Markdown has no underline, so the second best is `<u>`, which its renderers let through.
    """
    lines = [f"### {table.title}", ""]
    lines.append(f"| method | {' | '.join(table.columns)} |")
    lines.append("|---|" + "---:|" * len(table.columns))
    for row in table.rows:
        cells = [_markdown_cell(cell, row, table) for cell in row.cells]
        lines.append(f"| {_marked(row).replace('|', '/')} | {' | '.join(cells)} |")
    lines += ["", " ".join(notes(table))]
    if table.on_test:
        lines += ["", f"**{ON_TEST} Tuned on test labels: not comparable with the other rows.**"]
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    r"""A `table` environment; needs `booktabs` and, for results tuned on test labels, `xcolor`."""
    caption = " ".join([f"{table.title}.", *notes(table)])
    if table.on_test:
        caption += f" {ON_TEST} Tuned on test labels: not comparable with the other rows."
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(["method", *(_escaped(name) for name in table.columns)]) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [_latex_cell(cell, row, table) for cell in row.cells]
        lines.append(" & ".join([_escaped(_marked(row)), *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def as_html(table: Table) -> str:
    """The table with its notes."""
    rows = [
        [
            html.escape(_marked(row))
            if row.kind == "ours"
            else f"<i>{html.escape(_marked(row))}</i>",
            *(_html_cell(cell, row, table) for cell in row.cells),
        ]
        for row in table.rows
    ]
    kinds = ["" if row.kind == "ours" else row.kind for row in table.rows]
    headings = ["method", *(html.escape(name) for name in table.columns)]
    said = html.escape(" ".join(notes(table)))
    warning = ""
    if table.on_test:
        warning = (
            f'<p class="bad"><b>{ON_TEST} Tuned on test labels: not comparable with the other '
            "rows.</b></p>"
        )
    return f'<p class="soft">{said}</p>{warning}{page.table(headings, rows, kinds=kinds)}'


def document(texts: Iterable[str], form: str) -> str:
    """Several tables as one file."""
    if form == "latex":
        lead = "% \\usepackage{booktabs}\n% \\usepackage{xcolor}\n\n"
        return lead + "\n".join(texts)
    return "\n".join(texts)


def _marked(row: Row) -> str:
    return f"{row.label} {QUOTED}" if row.kind == "quoted" else row.label


def _number(cell: Cell, row: Row) -> str:
    return f"{cell.mean:+.2f}" if row.kind == "difference" else f"{cell.mean:.2f}"


def _markdown_cell(cell: Cell | None, row: Row, table: Table) -> str:
    if cell is None:
        return ""
    text = _number(cell, row)
    text = {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(cell.rank, text)
    if cell.std is not None:
        text += f" ±{cell.std:.2f}"
    if table.is_short(row, cell):
        text += f" (of {cell.runs})"
    return f"{text} {ON_TEST}" if cell.on_test else text


def _latex_cell(cell: Cell | None, row: Row, table: Table) -> str:
    if cell is None:
        return ""
    text = _number(cell, row)
    if row.kind == "difference":
        text = f"${text}$"
    text = {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(cell.rank, text)
    if cell.std is not None:
        text += rf" {{\scriptsize $\pm${cell.std:.2f}}}"
    if table.is_short(row, cell):
        text += rf" {{\scriptsize (of {cell.runs})}}"
    return rf"\textcolor{{red}}{{{text}$^\ddagger$}}" if cell.on_test else text


def _html_cell(cell: Cell | None, row: Row, table: Table) -> str:
    if cell is None:
        return ""
    text = _number(cell, row)
    style = {1: "best", 2: "second"}.get(cell.rank, "")
    if style:
        text = f'<span class="{style}">{text}</span>'
    if cell.std is not None:
        text += f" <small>&plusmn;{cell.std:.2f}</small>"
    if table.is_short(row, cell):
        text += f" <small>(of {cell.runs})</small>"
    if cell.on_test:
        text = f'<span class="bad" title="tuned on test labels">{text} {ON_TEST}</span>'
    return text


def _escaped(text: str) -> str:
    safe = "".join(_LATEX.get(character, character) for character in text)
    return safe.replace(QUOTED, r"$^\dagger$").replace(ON_TEST, r"$^\ddagger$")
