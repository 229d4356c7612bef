"""`soba demo`: pixels to a picture of the gain, offline."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from soba.bench.demo import METHODS, Domain, adapt_share, averages, run_demo, work_units
from soba.bench.demo_all import run_all
from soba.bench.demo_all import table as rows_of_all
from soba.bench.demo_all import work_units as work_units_of_all
from soba.bench.evaluate import Record
from soba.bench.plots import check_pictures
from soba.cli._common import JsonPath, check_folder, out, progress_bar, write_json
from soba.cli.methods import footnotes, sign
from soba.datasets.icons import DOMAINS
from soba.encode.load import load_encoder, load_tunable


def demo_(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="HTML", help="The report.", show_default="soba-demo.html"
        ),
    ] = None,
    per_class: Annotated[
        int | None, typer.Option(min=1, help="Icons per class and domain.", show_default="32")
    ] = None,
    orders: Annotated[int, typer.Option(min=1, help="Shuffled streams of each domain.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the drawings.")] = 0,
    all_: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Every method of the paper's tables instead, on 64 views of 2 icons (or "
            "--per-class) of each class: needs torch and open_clip, and three quarters of an hour.",
        ),
    ] = False,
    json_path: JsonPath = None,
) -> None:
    """Adapt the tiny CLIP to icons of designers it has never seen, and draw what came of it.

    Needs no network and no weights: it draws five domains of icons, encodes them, streams them
    through zero-shot CLIP, NCM, TDA, SOBA and SOBA+, prints the table and writes a page.
    """
    check_folder(json_path)
    if all_:
        if output is not None:
            raise ValueError("--all prints a table and writes no page; its records go to --json")
        _every_method(per_class or 2, orders, seed, json_path)
        return
    output = output or Path("soba-demo.html")
    check_folder(output)
    check_pictures()
    from soba.bench.demo_report import write_report

    started = time.perf_counter()
    per_class = per_class or 32
    encoder = load_encoder()
    with progress_bar() as progress:
        total = work_units(per_class, orders, len(METHODS))
        task = progress.add_task("demo", total=total)
        domains = run_demo(
            encoder,
            per_class=per_class,
            orders=orders,
            seed=seed,
            step=lambda what, amount: progress.update(task, advance=amount, description=what),
        )
    out.print(_table(domains))
    write_json(json_path, [r for d in domains for r in d.records], _summary(domains))
    with out.status("drawing the report"):
        write_report(output, domains, time.perf_counter() - started)
    encode = sum(domain.seconds["encode"] for domain in domains)
    images = sum(len(domain.images) for domain in domains)
    out.print(
        f"{images} icons, encoded at {images / encode:.0f} images/s; adapting costs SOBA+ "
        f"{100 * adapt_share(domains):.1f} % of that time; "
        f"{time.perf_counter() - started:.0f} s in all",
        highlight=False,
    )
    out.print(f"report with pictures in {output}", soft_wrap=True)


def _every_method(per_class: int, orders: int, seed: int, json_path: Path | None) -> None:
    """All methods on the same views; prints the table, writes no page."""
    encoder, tunable = load_encoder(), load_tunable()
    with progress_bar() as progress:
        task = progress.add_task("demo", total=work_units_of_all(per_class, orders=orders))
        records = run_all(
            encoder,
            tunable,
            per_class=per_class,
            orders=orders,
            seed=seed,
            step=lambda what, amount: progress.update(task, advance=amount, description=what),
        )
    rows = rows_of_all(records)
    out.print(_table_of_all(rows))
    for note in footnotes(row["provenance"] for row in rows):
        out.print(note, highlight=False)
    for row in rows:
        if row["used"]:
            out.print(f"* {row['method']}: {row['used']}", highlight=False)
    write_json(json_path, records, rows)


def _table_of_all(rows: list[Record]) -> Table:
    table = Table(
        title="top-1 %, all methods; milliseconds per image, encoding apart",
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,  # 80 columns are just enough
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    table.add_column("method", no_wrap=True)
    for column in (*DOMAINS, "shifted", "gain", "ms"):
        table.add_column(column, justify="right", no_wrap=True)
    plain = rows[0]["shifted"]
    for row in rows:
        scores = [f"{row[domain]:.1f}" for domain in (*DOMAINS, "shifted")]
        label = row["method"] + sign(row["provenance"]) + ("*" if row["used"] else "")
        gain = f"{row['shifted'] - plain:+.1f}"
        table.add_row(label, *scores, gain, f"{row['milliseconds']:.1f}")
    return table


def _summary(domains: list[Domain]) -> list[Record]:
    return [row | {"dataset": d.images.name} for d in domains for row in d.summary.values()]


def _table(domains: list[Domain]) -> Table:
    orders = domains[0].summary["zero-shot"]["orders"]
    table = Table(
        title=f"top-1 %, mean over {orders} orders (std)",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    table.add_column("domain", no_wrap=True)
    for method in METHODS:
        table.add_column(method, justify="right", no_wrap=True, min_width=9)
    for domain in domains:
        summary = domain.summary
        best = max(row["accuracy_mean"] for row in summary.values())
        cells = []
        for method in METHODS:
            row = summary[method]
            score = f"{row['accuracy_mean']:.2f}"
            spread = "" if method == "zero-shot" else f" [dim]({row['accuracy_std']:.1f})[/]"
            cells.append(
                f"[bold]{score}[/]{spread}" if row["accuracy_mean"] == best else score + spread
            )
        table.add_row(domain.name, *cells)
    table.add_section()
    mean = averages(domains)
    table.add_row("mean of shifted", *(f"{mean[m]:.2f}" for m in METHODS))
    gains = [f"{mean[m] - mean['zero-shot']:+.2f}" for m in METHODS[1:]]
    table.add_row("gain", "", *gains)
    return table
