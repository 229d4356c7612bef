"""`soba demo`: pixels to a picture of the gain, offline."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from threadpoolctl import threadpool_limits

from soba.cli._common import (
    JsonPath,
    check_folder,
    counted,
    out,
    per_second,
    progress_bar,
    write_json,
)
from soba.cli._tables import bold_best
from soba.encode.encoder import load_encoder
from soba.report.plots import check_pictures
from soba.studies.demo import (
    METHODS,
    Domain,
    adapt_share,
    averages,
    most_gained,
    run_demo,
    work_units,
)


def demo_(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="HTML", help="The report.")
    ] = Path("soba-demo.html"),
    per_class: Annotated[int, typer.Option(min=1, help="Icons per class and domain.")] = 32,
    orders: Annotated[int, typer.Option(min=1, help="Shuffled streams of each domain.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the drawings.")] = 0,
    json_path: JsonPath = None,
) -> None:
    """Adapt the tiny CLIP to icons of designers it has never seen, and draw what came of it.

    Needs no network and no weights: it draws five domains of icons, encodes them, streams them
    through zero-shot CLIP, NCM, TDA, SOBA and SOBA+, prints the table and writes a page.
    """
    for path in (json_path, output):
        check_folder(path)
    check_pictures()
    from soba.report.demo_page import write_report

    started = time.perf_counter()
    encoder = load_encoder()
    # Threads of BLAS that wait for the next small product keep a core from the encoder.
    with threadpool_limits(1, user_api="blas"), progress_bar() as progress:
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
    records = [record.to_json() for domain in domains for record in domain.records]
    write_json(json_path, records, _summary(domains))
    with out.status("drawing the report"):
        write_report(output, domains, time.perf_counter() - started)
    encode = sum(domain.seconds["encode"] for domain in domains)
    images = sum(len(domain.images) for domain in domains)
    out.print(
        f"{images} icons, encoded at {per_second(images, encode)} images/s; adapting costs SOBA+ "
        f"{100 * adapt_share(domains):.1f} % of that time; "
        f"{time.perf_counter() - started:.0f} s in all",
        highlight=False,
    )
    out.print(f"report with pictures in {output}", soft_wrap=True)
    out.print(
        f"its examples are of {most_gained(domains).name}, the shifted domain that SOBA+ gains "
        "most on",
        soft_wrap=True,
        highlight=False,
    )


def _summary(domains: list[Domain]) -> list[dict[str, Any]]:
    return [row | {"dataset": d.images.name} for d in domains for row in d.summary.values()]


def _table(domains: list[Domain]) -> Table:
    orders = domains[0].summary["zero-shot"]["orders"]
    table = Table(
        title=f"top-1 %, mean over {counted(orders, 'order')} (std)",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    table.add_column("domain", no_wrap=True)
    for method in METHODS:
        table.add_column(method, justify="right", no_wrap=True, min_width=9)
    for domain in domains:
        rows = [domain.summary[method] for method in METHODS]
        scores = [row["accuracy_mean"] for row in rows]
        numbers = bold_best([f"{score:.2f}" for score in scores], scores)
        spread = ["", *(f" [dim]({row['accuracy_std']:.1f})[/]" for row in rows[1:])]
        table.add_row(domain.name, *map(str.__add__, numbers, spread))
    table.add_section()
    mean = averages(domains)
    means = [mean[method] for method in METHODS]
    table.add_row("mean of shifted", *bold_best([f"{value:.2f}" for value in means], means))
    gains = [f"{mean[m] - mean['zero-shot']:+.2f}" for m in METHODS[1:]]
    table.add_row("gain", "", *gains)
    return table
