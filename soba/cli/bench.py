"""`soba bench`: the two benchmarks, the same on icons, and what adapting costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from soba.bench.evaluate import Record
from soba.bench.feature_folder import FeatureFolder
from soba.bench.grid import Grid
from soba.bench.plan import Plan
from soba.bench.sources import Icons, OnDisk, Source
from soba.bench.tables import tables
from soba.cli import _tables
from soba.cli._common import (
    Batch,
    Device,
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
    shown,
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
    typer.Option(
        help="The folder that holds the data sets of ood and cross, as CoOp or TDA lay it out; "
        "of the OOD sets, TPT's layout will do as well."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="An open_clip name (the paper's: ViT-B-16 and RN50), an ONNX folder or file, or "
        "`tiny`, ours, which knows icons only and is the default there."
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated names. Default: zero-shot, ncm, tda, soba and soba+; from 2 views "
        "on also clip+views and zero, from 5 on mta."
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
    model: Model = None,
    pretrained: Pretrained = None,
    methods: Methods = None,
    datasets: Datasets = None,
    incomplete: Annotated[
        bool,
        typer.Option(
            "--incomplete", help="Go on where images are missing; the records say how many."
        ),
    ] = False,
    tda_listing: Annotated[
        bool,
        typer.Option(
            "--tda-listing",
            help="Leave out the images of ImageNet's variants that the official TDA overlooks: "
            "those with `sh` in their names.",
        ),
    ] = False,
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
    per_class: Annotated[
        int | None, typer.Option(min=1, help="Icons per class; default: 16.")
    ] = None,
    prompt: Templates = None,
    output: Output = Path("results"),
    batch: Batch = 64,
    device: Device = "auto",
    precision: Precision = "fp32",
    threads: Threads = None,
) -> None:
    chosen = tuple(name.strip() for name in (datasets or "").split(",") if name.strip())
    names = _methods(methods, views)
    benchmark = str(context.info_name)
    pretrained = weights_of(model, pretrained)
    if views == 1 and augmix:
        raise ValueError("--augmix changes the views, and there is one: say --views 64 as well")
    if views == 1 and stream_views:
        raise ValueError("--stream-views needs views: say --views 64 as well")
    source: Source
    encoder: Encoder | None = None
    if benchmark == "icons":
        _refuse(
            "bench icons: draws its images, {} has no place here",
            {"--data": data, "--incomplete": incomplete, "--tda-listing": tda_listing},
        )
        model = model or TINY
        encoder = load_encoder(
            model, pretrained, device=device, precision=precision, threads=threads
        )
        source = Icons(chosen, per_class or 16, shots, size=encoder.preprocess.size)
    else:
        _refuse(f"bench {benchmark}: {{}} is for icons", {"--per-class": per_class})
        if benchmark != "ood":
            _refuse(f"bench {benchmark}: {{}} is for ood", {"--tda-listing": tda_listing})
        if data is None or not data.is_dir():
            raise ValueError(
                f"bench {benchmark}: --data must be the folder that holds the data sets"
            )
        if model is None:
            raise ValueError(
                f"bench {benchmark}: say --model, ViT-B-16 or RN50 as in the paper, or another "
                "open_clip name with --pretrained; tiny knows icons only"
            )
        source = OnDisk(benchmark, data, chosen, shots, incomplete, tda_listing)
    plan = Plan(source, names, orders, order, tune_on, views, stream_views, fallback)
    _stop_at(plan.problems(), on_disk=benchmark != "icons")
    _say_found(plan)
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
    for line in _partial(records):
        err.print(f"[bold yellow]{shown(line)}[/]", soft_wrap=True, highlight=False)
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


def _refuse(sentence: str, options: dict[str, object]) -> None:
    """An option that would be ignored is a misunderstanding."""
    for name, value in options.items():
        if value not in (None, False):
            raise ValueError(sentence.format(name))


def _stop_at(problems: list[str], *, on_disk: bool) -> None:
    """All problems at once: nobody wants to find them one run after the other."""
    if not problems:
        return
    err.print(f"[bold red]error:[/] {len(problems)} problems, nothing was encoded:")
    for problem in problems:
        err.print(f"  {escape(problem)}", soft_wrap=True, highlight=False)
    if on_disk:
        err.print("--datasets leaves sets out, --incomplete goes on without missing images")
    raise typer.Exit(2)


def _say_found(plan: Plan) -> None:
    """What is unusual about the images, and no reason to stop."""
    for dataset, split in plan.all_needed():
        census = plan.source.census(dataset, split)
        for remark in census.remarks:
            err.print(f"[yellow]{shown(remark)}[/]", soft_wrap=True, highlight=False)
        if split != "test" or census.expected is None:
            continue
        there = len(plan.source.images(dataset, split))
        if there < census.expected:
            line = _of_all(dataset, there, census.expected)
            err.print(f"[bold yellow]{line}[/]", soft_wrap=True, highlight=False)


def _of_all(name: str, there: int, expected: int) -> str:
    return f"{name}: {there} of {expected} images, not the literature's split"


def _partial(records: list[Record]) -> list[str]:
    """A line for each set that was not scored whole."""
    lines = []
    for record in records:
        name, there, left_out = record["dataset"], record["samples"], record["left_out"]
        if left_out and record["expected"] is not None:
            lines.append(_of_all(name, there, record["expected"]))
        elif left_out:
            lines.append(f"{name}: {left_out} images left out, {there} scored")
    return list(dict.fromkeys(lines))
