"""`soba stress`: where adapters break."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import soba
from soba.bench.evaluate import transduces
from soba.cli._common import (
    File,
    JsonPath,
    check_folder,
    counted,
    err,
    method_names,
    out,
    progress_bar,
    write_json,
)
from soba.cli._tables import bold_best
from soba.registry import list_methods
from soba.report.method_looks import title_of
from soba.report.plots import check_pictures, heat_map
from soba.studies.scenarios import names_of
from soba.studies.stress import (
    CONTROL,
    QUICK,
    QUICK_ORDERS,
    Part,
    Stressed,
    check_methods,
    planned,
    stress,
    summarise,
)

METHODS = "zero-shot,tda,soba,soba+"


def stress_(
    file: File,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Comma-separated names; `soba methods` lists them. Default: {METHODS}; with "
            "--transductive: zero-shot and all that see whole sets.",
        ),
    ] = None,
    scenarios: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated names of scenarios, or how names begin (`bursts`, `statA`). "
            "Default: all of them."
        ),
    ] = None,
    orders: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Seeded orders of each scenario. Default: 5, or 20 where fewer than 500 images "
            "are scored. OGA's tail accuracy is of 100.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"A first look: {QUICK_ORDERS} orders of {', '.join(QUICK[False])} (with "
            f"--transductive: {', '.join(QUICK[True])}). --orders and --scenarios still hold.",
        ),
    ] = False,
    transductive: Annotated[
        bool,
        typer.Option(
            "--transductive",
            help="Methods see whole sets at once, not streams; the scenarios are then hard sets.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first order.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Heat map of the gains. Default: FILE's name + -stress."),
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Find where adapters break: methods side by side on hard streams made from a feature file.

    Regimes, which say what images come and when: `shuffled`; `quarter`, where three of four listed
    classes never come; `sorted` by class; `few`, 4 images a class (also `2` and `16 per class`);
    `zipf`, very uneven classes; `bursts 0.1` and `0.01`, where each class falls into few of 20
    slots in time (Dirichlet); `StatA 0.1` to `0.001`, the same with a slot for each class.

    Trouble: `shift` half way, `30% unrelated` images, `near-duplicates`, `wrong text`.

    With --transductive: whole sets, quarters and so on, `batches of 4` classes, and StatA's
    batches, as `StatA 1-4 of 64`: 64 images of 1 to 4 classes.

    Tables: the gain over zero-shot, mean and worst order, and the Expected Tail Accuracy, which is
    the mean of the worst tenth of the orders. Before it begins it says how much there is to do, and
    after one stream of each method about how long it will take. soba runs the paper's
    schedule, tda alpha 2 and beta 5, soba+ its default.
    """
    names = _methods(methods, transductive)
    if quick:
        orders = orders or QUICK_ORDERS
        scenarios = scenarios or ",".join(QUICK[transductive])
    scenario_names = names_of(scenarios, transductive)
    plot = Path(f"{file.stem}-stress.png") if plot is None else plot
    for path in (plot, json_path):
        check_folder(path)
    check_pictures()
    check_methods(names, transductive)
    features = soba.FeatureSet.load(file)
    parts = planned(features, scenario_names, orders=orders, transductive=transductive)
    err.print(plan_line(parts, len(names)), highlight=False, soft_wrap=True)
    with progress_bar() as progress:
        rows = sum(part.orders * part.rows for part in parts) * len(names)
        task = progress.add_task("rows", total=rows)
        records = stress(
            features,
            names,
            scenarios=scenario_names,
            seed=seed,
            orders=orders,
            transductive=transductive,
            step=_watch(
                parts,
                len(names),
                lambda n, what: progress.update(task, advance=n, description=what),
            ),
        )
    summary = summarise(records)
    write_json(json_path, [dataclasses.asdict(record) for record in records], summary)
    title = f"{file.name}: zero-shot top-1 %, and gains over it: mean/worst order"
    out.print(_stress_table(summary, names, scenario_names, title))
    title = "Expected Tail Accuracy: mean top-1 %"
    out.print(_tail_table(summary, names, scenario_names, title))
    if _draw(plot, summary, names, scenario_names, file.stem):
        out.print(f"heat map in {plot}", soft_wrap=True)


def plan_line(parts: list[Part], methods: int) -> str:
    """What a run will take, before it begins.

    >>> plan_line([Part("shuffled", 5, 1005), Part("few", 20, 76)], 3)
    '2 scenarios x 3 methods x 5 to 20 orders: 75 streams, 19,635 rows'
    """
    counts = sorted({part.orders for part in parts})
    streams = sum(part.orders for part in parts) * methods
    rows = sum(part.orders * part.rows for part in parts) * methods
    most = counted(counts[-1], "order")
    orders = most if len(counts) == 1 else f"{counts[0]} to {most}"
    return (
        f"{counted(len(parts), 'scenario')} x {counted(methods, 'method')} x {orders}: "
        f"{counted(streams, 'stream')}, {rows:,} rows"
    )


def lasting(seconds: float) -> str:
    """A time as far as it can be known beforehand.

    >>> lasting(12), lasting(61), lasting(700), lasting(9000)
    ('less than a minute', 'about 2 minutes', 'about 12 minutes', 'about 2.5 hours')
    """
    if seconds < 60:
        return "less than a minute"
    if seconds < 5400:
        return f"about {int(-(-seconds // 60))} minutes"
    return f"about {seconds / 3600:.1f} hours"


def _watch(
    parts: list[Part], methods: int, advance: Callable[[int, str], None]
) -> Callable[[Stressed], None]:
    """Counts rows, and says how long it will take once each method has run one stream."""
    rows = {part.scenario: part.rows for part in parts}
    total = sum(part.orders * part.rows for part in parts)
    begun, streams = time.perf_counter(), 0

    def step(record: Stressed) -> None:
        nonlocal streams
        streams += 1
        advance(rows[record.scenario], record.scenario)
        if streams == methods and total > rows[record.scenario]:
            seconds = (time.perf_counter() - begun) * total / rows[record.scenario]
            first = f"by the first order of {record.scenario}"
            err.print(f"{lasting(seconds)} in all, {first}", highlight=False, soft_wrap=True)

    return step


def _methods(methods: str | None, transductive: bool) -> list[str]:
    """The methods to run, with the control that gains are measured against."""
    if methods is None and transductive:
        return [CONTROL, *(name for name in list_methods() if transduces(name))]
    names = method_names(METHODS if methods is None else methods)
    return names if CONTROL in names else [CONTROL, *names]


def _draw(
    path: Path, summary: list[dict[str, Any]], methods: list[str], scenarios: list[str], name: str
) -> bool:
    """The heat map of the gains, if there is a method beside the control."""
    cells = {(row["scenario"], row["method"]): row for row in summary}
    compared = [method for method in methods if method != CONTROL]
    if not compared:
        return False
    gains = np.array([[cells[s, m]["gain"] for m in compared] for s in scenarios])
    heat_map(
        path,
        np.vstack([gains, gains.mean(axis=0, keepdims=True)]),
        [*scenarios, "average"],
        [title_of(method) for method in compared],
        title=f"{name}: gain over zero-shot",
        label="points of top-1",
    )
    return True


def _stress_table(
    summary: list[dict[str, Any]], methods: list[str], scenarios: list[str], title: str
) -> Table:
    cells = {(row["scenario"], row["method"]): row for row in summary}
    worst = min(summary, key=lambda row: row["gain"])
    table = _empty(title, "images", methods)
    for scenario in scenarios:
        numbers = []
        for name in methods:
            row = cells[scenario, name]
            if name == CONTROL:
                numbers.append(f"{row['accuracy_mean']:.2f}")
                continue
            text = f"{row['gain']:+.1f}/{row['gain_worst']:+.1f}"
            if row is worst and row["gain"] < 0:
                text = f"[white on red]{text}[/]"
            elif row["gain"] < 0:
                text = f"[red]{text}[/]"
            numbers.append(text)
        numbers = bold_best(numbers, [cells[scenario, name]["gain"] for name in methods], digits=1)
        table.add_row(scenario, str(cells[scenario, methods[0]]["scored"]), *numbers)
    table.add_section()
    for label, key, form, best in (
        ("average", "gain", "{:+.2f}", max),
        ("calibration error", "calibration_error", "{:.2f}", min),
    ):
        means = [float(np.mean([cells[s, m][key] for s in scenarios])) for m in methods]
        table.add_row(label, "", *bold_best(map(form.format, means), means, best=best))
    return table


def _tail_table(
    summary: list[dict[str, Any]], methods: list[str], scenarios: list[str], title: str
) -> Table:
    """The measure says of how many orders it is: the worst 10 of 100, or the worst one of 5."""
    cells = {(row["scenario"], row["method"]): row for row in summary}
    table = _empty(title, "worst tenth", methods)
    for scenario in scenarios:
        row = cells[scenario, methods[-1]]
        tails = [cells[scenario, name]["expected_tail_accuracy"] for name in methods]
        table.add_row(
            scenario,
            f"{row['tail_orders']} of {row['orders']}",
            *bold_best([f"{tail:.2f}" for tail in tails], tails),
        )
    return table


def _empty(title: str, second: str, methods: list[str]) -> Table:
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False
    )
    table.add_column("scenario", no_wrap=True)
    for heading in (second, *methods):
        table.add_column(heading, justify="right", no_wrap=True)
    return table
