"""`soba bench`: the two benchmarks, the same on icons, and what adapting costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from soba.bench.feature_folder import FeatureFolder
from soba.bench.grid import Grid
from soba.bench.plan import Plan
from soba.bench.sources import Icons, OnDisk, Source
from soba.bench.tables import tables
from soba.cli import _tables
from soba.cli._common import (
    Batch,
    Device,
    Model,
    Precision,
    Pretrained,
    Templates,
    Threads,
    err,
    method_names,
    open_encoder,
    out,
    progress_bar,
    say_broken,
    weights_of,
)
from soba.cli.efficiency import efficiency_
from soba.encode.encoder import Encoder
from soba.encode.load import TINY, load_encoder, load_tunable
from soba.encode.prompts import templates
from soba.registry import adapter_class, list_tuners

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run a benchmark: data sets x methods x orders, one record a cell, safe to kill.",
)

_STREAMING = ("zero-shot", "ncm", "tda", "soba", "soba+")
_ON_VIEWS = ("clip+views", "mta", "zero")

Data = Annotated[
    Path | None,
    typer.Option(help="The folder that holds the data sets, as CoOp, TDA or TPT lay it out."),
]
Methods = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated names. Default: zero-shot, ncm, tda, soba and soba+; from 5 views "
        "on also clip+views, mta and zero."
    ),
]
Datasets = Annotated[
    str | None, typer.Option(help="Comma-separated names; default: all of the benchmark.")
]
Orders = Annotated[int, typer.Option(min=1, help="Streams of each set, seeds 0 to ORDERS-1.")]
OrderName = Annotated[
    str,
    typer.Option(
        help="`shuffled`, `sorted` by class, or all domains as one stream: in `sequence`, `mixed`."
    ),
]
ViewCount = Annotated[int, typer.Option(min=1, help="Views per image; the TPT family: 64.")]
Augmix = Annotated[bool, typer.Option("--augmix", help="Distort and mix the views.")]
TuneOn = Annotated[
    str,
    typer.Option(
        help="Where alpha comes from: the `paper`; a search on the `val` split, on one data set by "
        "name (imagenet is the paper's protocol) or on the `stream` without labels. `test` uses "
        "the test labels, and the records say so."
    ),
]
Shots = Annotated[int, typer.Option(min=1, help="Labelled images per class, for few-shot methods.")]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="RESULTS", help="Folder of features and records; runs add to it."
    ),
]


def bench_(
    context: typer.Context,
    data: Data = None,
    model: Model = "tiny",
    pretrained: Pretrained = None,
    methods: Methods = None,
    datasets: Datasets = None,
    orders: Orders = 5,
    order: OrderName = "shuffled",
    views: ViewCount = 1,
    augmix: Augmix = False,
    stream_views: Annotated[
        bool,
        typer.Option(
            "--stream-views",
            help="Give the views to all methods, by TDA's rule, not only to those that need them.",
        ),
    ] = False,
    tune_on: TuneOn = "paper",
    fallback: Annotated[
        bool, typer.Option("--fallback", help="Run difftpt without generated views, and say so.")
    ] = False,
    shots: Shots = 16,
    per_class: Annotated[int, typer.Option(min=1, help="Icons per class.")] = 16,
    prompt: Templates = None,
    output: Output = Path("results"),
    batch: Batch = 64,
    device: Device = "auto",
    precision: Precision = "fp32",
    threads: Threads = None,
) -> None:
    chosen = tuple(name.strip() for name in (datasets or "").split(",") if name.strip())
    names = _methods(methods, views)
    pretrained = weights_of(model, pretrained)
    benchmark = str(context.info_name)
    source: Source
    encoder: Encoder | None = None
    if benchmark == "icons":
        encoder = load_encoder(
            model, pretrained, device=device, precision=precision, threads=threads
        )
        source = Icons(chosen, per_class, shots, size=encoder.preprocess.size)
    elif data is None or not data.is_dir():
        raise ValueError(f"bench {benchmark}: --data must be the folder that holds the data sets")
    else:
        source = OnDisk(benchmark, data, chosen, shots)
    plan = Plan(source, names, orders, order, tune_on, views, stream_views, fallback)
    _stop_at(plan.problems())
    if encoder is None:
        encoder = open_encoder(model, pretrained, device, precision, threads)
    tunable = None
    if any(name in list_tuners() for name in names):
        tunable = load_tunable(model, device=device) if model == TINY else encoder
    folder = FeatureFolder(
        output / "features",
        encoder,
        templates(prompt) if prompt else None,
        views,
        augmix,
        batch,
    )
    # Other weights are another model: their records never share a row, nor stand by the paper's.
    named = model if pretrained in (None, "openai") else f"{model}:{Path(pretrained).name}"
    grid = Grid(plan, folder, output, model=named, tunable=tunable)
    with progress_bar() as progress:
        task = progress.add_task("cells", total=grid.work())
        records = grid.run(
            lambda what, amount: progress.update(task, advance=amount, description=what)
        )
    if folder.broken:
        say_broken({f"{name}: {key}": why for (name, key), why in folder.broken.items()})
    for table in tables(records):
        out.print(*_tables.drawn(table, out.width), sep="\n")
    out.print(f"{len(records)} records in {output / 'records'}", soft_wrap=True, highlight=False)


app.command(
    "ood",
    help="ImageNet and its variants -A, -V2, -R and -Sketch. For the paper's setting on the "
    "variants add `--views 64 --augmix --stream-views`, as TDA has it.",
)(bench_)
app.command("cross", help="The ten fine-grained data sets, from Aircraft to UCF101.")(bench_)
app.command(
    "icons", help="Five domains of icons that mirror the OOD benchmark: no data, no network."
)(bench_)
app.command("efficiency")(efficiency_)


# Before any encoding --------------------------------------------------------------------------


def _methods(methods: str | None, views: int) -> tuple[str, ...]:
    if methods is not None:
        return tuple(method_names(methods))
    fitting = [name for name in _ON_VIEWS if adapter_class(name).least_views <= views]
    return (*_STREAMING, *(fitting if views > 1 else []))


def _stop_at(problems: list[str]) -> None:
    """All problems at once: nobody wants to find them one run after the other."""
    if not problems:
        return
    err.print(f"[bold red]error:[/] {len(problems)} problems, nothing was encoded:")
    for problem in problems:
        err.print(f"  {escape(problem)}", soft_wrap=True, highlight=False)
    raise typer.Exit(2)
