"""The `soba` command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Table
except ImportError:  # the core installs without them
    sys.exit("the soba command needs: pip install 'soba-tta[cli]'")

import numpy as np

import soba
from soba._files import replacing
from soba.bench.evaluate import COVERAGES, Record, evaluate, summarise
from soba.bench.plots import check_pictures, curves, heat_map
from soba.bench.scenarios import SCENARIOS, build
from soba.bench.stress import orders_of, stress
from soba.bench.stress import summarise as summarise_stress
from soba.registry import adapter_class

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Training-free test-time adaptation for CLIP: a zero-shot classifier that gets better "
    "while it runs.",
)
# What several commands take.
File = Annotated[
    Path, typer.Argument(help="Labelled features: .safetensors, .npz or .pt.", metavar="FILE")
]
Methods = Annotated[str, typer.Option(help="Comma-separated names; `soba methods` lists them.")]
JsonPath = Annotated[
    Path | None, typer.Option("--json", metavar="OUT", help="Also write all records as JSON.")
]

out = Console()
err = Console(stderr=True)


def main() -> None:
    """Run the command; bad input ends with one line and exit code 2, never a traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError) as error:
        err.print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"soba {soba.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


@app.command("eval")
def eval_(
    file: File,
    methods: Methods = "zero-shot,ncm,tda,soba,soba+",
    orders: Annotated[int, typer.Option(min=1, help="Shuffled streams, seeds 0 to ORDERS-1.")] = 5,
    alpha: Annotated[
        float | None, typer.Option(min=0.0, help="Weight of the adapter against CLIP.")
    ] = None,
    beta: Annotated[
        float | None, typer.Option(min=0.0, help="Sharpness of a cache (tda, tip-adapter).")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help="Samples kept per class: a number, or `full`.")
    ] = None,
    reading: Annotated[
        str | None,
        typer.Option(help="How to read SOBA's formula: whitened, gda, dual, literal or ncm."),
    ] = None,
    refresh: Annotated[
        str | None,
        typer.Option(help="When statistics refresh: tenths, growth, or every N samples."),
    ] = None,
    support: Annotated[
        Path | None, typer.Option(help="Labelled training features for gda and tip-adapter.")
    ] = None,
    val: Annotated[
        Path | None, typer.Option(help="Labelled validation features they search alpha, beta on.")
    ] = None,
    unsure: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Abstain below this probability.")
    ] = 0.0,
    curve: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Draw accuracy over coverage: answer only the surest."),
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Compare methods on shuffled streams of a labelled feature file.

    Without options each method runs as its paper has it: ncm and soba with capacity 16, alpha 15
    and a refresh at every tenth of the stream; tda with alpha 2 and beta 5; soba+ as it always
    does. An option applies to every chosen method that has such a hyper-parameter.
    """
    names = _names(methods)
    for path in (json_path, curve):
        _check_folder(path)
    if curve is not None:
        check_pictures()
    features = soba.FeatureSet.load(file)
    if support is not None:
        features = features.with_support(soba.FeatureSet.load(support))
    if val is not None:
        features = features.with_val(soba.FeatureSet.load(val))
    overrides: dict[str, Any] = {"alpha": alpha, "beta": beta, "reading": reading}
    overrides = {key: value for key, value in overrides.items() if value is not None}
    if capacity is not None:
        overrides["capacity"] = None if capacity == "full" else _number(capacity, "--capacity")
    if refresh is not None:
        word = refresh in ("tenths", "growth")
        overrides["refresh"] = refresh if word else _number(refresh, "--refresh")

    with _progress() as progress:
        task = progress.add_task("streams", total=len(names) * orders)

        def step(method: str, seed: int) -> None:
            progress.update(task, advance=1, description=f"{method}, order {seed}")

        records = evaluate(
            features, names, orders=orders, overrides=overrides, unsure=unsure, step=step
        )
    summary = summarise(records)
    _write_json(json_path, records, summary)
    title = f"{file.name}: {len(features)} images, {features.classes} classes, {orders} orders"
    out.print(_table(summary, title, unsure))
    if curve is not None:
        curves(
            curve,
            {row["method"]: (100 * COVERAGES, row["accuracy_at_coverage"]) for row in summary},
            title=f"{file.stem}: only the surest answered",
            x_label="coverage, % of the images",
            y_label="top-1 % of the answered",
        )
        out.print(f"accuracy over coverage in {curve}", soft_wrap=True)


@app.command("stress")
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
    names = _names(methods)
    if "zero-shot" not in names:
        names.insert(0, "zero-shot")  # the control that gains are measured against
    chosen = list(SCENARIOS)
    if scenarios is not None:
        chosen = [name.strip() for name in scenarios.split(",") if name.strip()]
        unknown = [name for name in chosen if name not in SCENARIOS]
        if unknown:
            raise ValueError(f"no scenario {unknown[0]!r}; there are: {', '.join(SCENARIOS)}")
    plot = Path(f"{file.stem}-stress.png") if plot is None else plot
    for path in (plot, json_path):
        _check_folder(path)
    check_pictures()
    features = soba.FeatureSet.load(file)
    total = sum(orders_of(build(name, features, 0)) for name in chosen) * len(names)
    with _progress() as progress:
        task = progress.add_task("streams", total=total)
        records = stress(
            features,
            names,
            scenarios=chosen,
            seed=seed,
            step=lambda name: progress.update(task, advance=1, description=name),
        )
    summary = summarise_stress(records)
    _write_json(json_path, records, summary)
    title = f"{file.name}: zero-shot top-1 %, and gains over it: mean/worst order"
    out.print(_stress_table(summary, names, chosen, title))
    cells = {(row["scenario"], row["method"]): row for row in summary}
    shown = [name for name in names if name != "zero-shot"]
    if shown:
        gains = np.array([[cells[s, m]["gain"] for m in shown] for s in chosen])
        averages = gains.mean(axis=0, keepdims=True)
        heat_map(
            plot,
            np.vstack([gains, averages]),
            [*chosen, "average"],
            shown,
            title=f"{file.stem}: gain over zero-shot",
            label="points of top-1",
        )
        out.print(f"heat map in {plot}", soft_wrap=True)


@app.command("methods")
def methods_() -> None:
    """List the methods, a line each, with what they need."""
    table = Table(box=None, pad_edge=False)
    for column in ("name", "what it does", "needs"):
        table.add_column(column)
    for name in soba.list_adapters():
        cls = adapter_class(name)
        table.add_row(f"[bold]{name}[/]", (cls.__doc__ or "").strip().splitlines()[0], cls.needs)
    out.print(table)


def _table(summary: list[Record], title: str, unsure: float) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    headings = ["top-1 %", "std", "gain", "calibration error %", "seconds"]
    if unsure:
        headings += ["answered %", "right of them %"]
    for heading in headings:
        table.add_column(heading, justify="right")
    best = max(row["accuracy_mean"] for row in summary)
    for row in summary:
        score = f"{row['accuracy_mean']:.2f}"
        right = row["accuracy_answered"]
        answered = [f"{row['answered']:.1f}", "" if right is None else f"{right:.2f}"]
        table.add_row(
            row["method"],
            f"[bold]{score}[/]" if row["accuracy_mean"] == best else score,
            f"{row['accuracy_std']:.2f}",
            "" if row["gain"] is None else f"{row['gain']:+.2f}",
            f"{row['calibration_error']:.2f}",
            f"{row['seconds']:.3f}",
            *(answered if unsure else []),
        )
    return table


def _stress_table(
    summary: list[Record], methods: list[str], scenarios: list[str], title: str
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
        shown = []
        for name in methods:
            row = cells[scenario, name]
            if name == "zero-shot":
                shown.append(f"{row['accuracy_mean']:.2f}")
                continue
            text = f"{row['gain']:+.1f}/{row['gain_worst']:+.1f}"
            if row is worst and row["gain"] < 0:
                text = f"[bold white on red]{text}[/]"
            elif row["gain"] < 0:
                text = f"[red]{text}[/]"
            shown.append(text)
        table.add_row(scenario, str(cells[scenario, methods[0]]["scored"]), *shown)
    table.add_section()
    for label, key, form in (
        ("average", "gain", "{:+.2f}"),
        ("calibration error", "calibration_error", "{:.2f}"),
    ):
        means = [np.mean([cells[s, m][key] for s in scenarios]) for m in methods]
        table.add_row(label, "", *(form.format(value) for value in means))
    return table


def _names(methods: str) -> list[str]:
    """The methods an option names, checked."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise ValueError("--methods is empty; `soba methods` lists what there is")
    for name in names:
        adapter_class(name)
    if len(set(names)) < len(names):
        raise ValueError(f"--methods names a method twice: {methods}")
    return names


def _check_folder(path: Path | None) -> None:
    """Find out before the work, not after it, that a result cannot be written."""
    if path is not None and not path.resolve().parent.is_dir():
        raise ValueError(f"{path}: the folder does not exist")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=err, transient=True)


def _write_json(path: Path | None, records: list[Record], summary: list[Record]) -> None:
    if path is None:
        return
    content = json.dumps({"records": records, "summary": summary}, indent=2)
    with replacing(path) as temporary:
        temporary.write_text(content + "\n")
    out.print(f"{len(records)} records in {path}", soft_wrap=True)


def _number(text: str, option: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError(f"{option} takes a positive whole number or a word, not {text!r}")
    return value


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


if __name__ == "__main__":
    main()
