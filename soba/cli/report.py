"""`soba report`: results as a page, and as tables for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from soba.cli._common import check_folder, counted, err, out
from soba.report.plots import check_pictures
from soba.report.read import read_results


def report_(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS",
            help="Folder of `soba bench`, or a JSON file of `soba eval` or `bench efficiency`.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="HTML", help="The page to write.")
    ] = Path("report.html"),
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also the tables as Markdown.")
    ] = None,
    latex: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also the tables as LaTeX (booktabs).")
    ] = None,
) -> None:
    """Draw tables and pictures of results into one self-contained page.

    Top-1 with its spread over the orders, the paper's numbers beside ours, the OOD radar, accuracy
    over the stream, calibration, cost, and what `soba ablate` and `soba bench efficiency` left in
    the folder. Files that are damaged or half written are named and left out; so are records that
    no table could tell from newer ones, made with other images or settings.
    """
    for path in (output, markdown, latex):
        check_folder(path)
    check_pictures()
    from soba.report.page import write_report, write_tables

    with out.status("reading the results") as status:
        contents = read_results(results)
        write_report(output, contents, step=lambda what: status.update(f"drawing: {what}"))
        for path, form in ((markdown, "markdown"), (latex, "latex")):
            if path is not None:
                write_tables(path, contents, form)
    for problem in contents.problems[:10]:
        err.print(f"[yellow]left out:[/] {escape(problem)}", soft_wrap=True, highlight=False)
    if len(contents.problems) > 10:
        err.print(f"[yellow]... and {len(contents.problems) - 10} more; the report lists them[/]")
    written = ", ".join(str(path) for path in (output, markdown, latex) if path is not None)
    count = counted(len(contents.records), "record")
    out.print(f"{count} in {written}", soft_wrap=True, highlight=False)
