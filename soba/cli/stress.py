"""`soba stress`: where adapters break."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import soba
from soba.cli._common import (
    File,
    JsonPath,
    Methods,
    check_folder,
    method_names,
    out,
    progress_bar,
    write_json,
)
from soba.cli._tables import bold_best
from soba.report.method_looks import title_of
from soba.report.plots import check_pictures, heat_map
from soba.studies.scenarios import SCENARIOS, build
from soba.studies.stress import orders_of, stress, summarise


def stress_(
    file: File,
    methods: Methods = "zero-shot,tda,soba,soba+",
    scenarios: Annotated[
        str | None, typer.Option(help="Comma-separated names of scenarios; default: all of them.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first order.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Heat map of the gains. Default: FILE's name + -stress."),
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Find where adapters break: methods side by side on hard streams made from a feature file.

    Few images per class, absent classes, skewed and sorted streams, a shift half way, unrelated
    images, near-duplicates, wrong class names. 5 seeded orders each, 20 where fewer than 500
    images are scored. soba runs the paper's schedule, tda alpha 2 and beta 5, soba+ its default.
    """
    names = method_names(methods)
    if "zero-shot" not in names:
        names.insert(0, "zero-shot")  # the control that gains are measured against
    scenario_names = list(SCENARIOS)
    if scenarios is not None:
        scenario_names = [name.strip() for name in scenarios.split(",") if name.strip()]
        unknown = [name for name in scenario_names if name not in SCENARIOS]
        if unknown:
            raise ValueError(f"no scenario {unknown[0]!r}; there are: {', '.join(SCENARIOS)}")
    plot = Path(f"{file.stem}-stress.png") if plot is None else plot
    for path in (plot, json_path):
        check_folder(path)
    check_pictures()
    features = soba.FeatureSet.load(file)
    total = sum(orders_of(build(name, features, 0)) for name in scenario_names) * len(names)
    with progress_bar() as progress:
        task = progress.add_task("streams", total=total)
        records = stress(
            features,
            names,
            scenarios=scenario_names,
            seed=seed,
            step=lambda name: progress.update(task, advance=1, description=name),
        )
    summary = summarise(records)
    write_json(json_path, [dataclasses.asdict(record) for record in records], summary)
    title = f"{file.name}: zero-shot top-1 %, and gains over it: mean/worst order"
    out.print(_stress_table(summary, names, scenario_names, title))
    cells = {(row["scenario"], row["method"]): row for row in summary}
    compared = [name for name in names if name != "zero-shot"]
    if compared:
        gains = np.array([[cells[s, m]["gain"] for m in compared] for s in scenario_names])
        averages = gains.mean(axis=0, keepdims=True)
        heat_map(
            plot,
            np.vstack([gains, averages]),
            [*scenario_names, "average"],
            [title_of(name) for name in compared],
            title=f"{file.stem}: gain over zero-shot",
            label="points of top-1",
        )
        out.print(f"heat map in {plot}", soft_wrap=True)


def _stress_table(
    summary: list[dict[str, Any]], methods: list[str], scenarios: list[str], title: str
) -> Table:
    cells = {(row["scenario"], row["method"]): row for row in summary}
    worst = min(summary, key=lambda row: row["gain"])
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False
    )
    table.add_column("scenario", no_wrap=True)
    table.add_column("images", justify="right", no_wrap=True)
    for name in methods:
        table.add_column(name, justify="right", no_wrap=True)
    for scenario in scenarios:
        numbers = []
        for name in methods:
            row = cells[scenario, name]
            if name == "zero-shot":
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
