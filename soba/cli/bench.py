"""`soba bench`: the two benchmarks, icons, any labelled folder, and what adapting costs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperOption

from soba.bench import run
from soba.bench.cells import cells_of
from soba.bench.places import Model as BenchModel
from soba.bench.places import Places
from soba.bench.plan import Plan
from soba.bench.record import Record
from soba.bench.runnable import runnable
from soba.bench.sources import Folders, Icons, OnDisk, Source
from soba.cli import _tables
from soba.cli._common import (
    Batch,
    Device,
    Precision,
    Pretrained,
    Templates,
    Threads,
    counted,
    err,
    method_names,
    open_encoder,
    out,
    progress_bar,
    say_broken,
    shown,
    weights_of,
)
from soba.cli._scale import RayOption, gpus_of, working
from soba.cli.efficiency import efficiency_
from soba.encode.encoder import TINY, load_encoder, split_name
from soba.encode.prompts import templates
from soba.registry import card, list_methods
from soba.report.tables import tables
from soba.scale.cells import records_by

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run a benchmark: data sets x methods x orders, one record a cell, safe to kill.",
)

_TAKERS = {  # options that not all benchmarks take -> those that do
    "--data": ("ood", "cross"),
    "--incomplete": ("ood", "cross"),
    "--tda-listing": ("ood",),
    "--per-class": ("icons",),
    "--datasets": ("ood", "cross", "icons"),
    "--train": ("folder",),
}

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="PATH...", help="Folders of class folders, or .csv files.", show_default=False
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="The folder that holds the data sets, as CoOp or TDA lay it out; of the OOD sets, "
        "TPT's layout will do as well."
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
        help="Comma-separated names, or `all` that can run. Default: zero-shot, ncm, tda, soba and "
        "soba+; from 2 views on also clip+views and zero, from 5 on mta."
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
    paths: Paths = None,
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
    fixed_constants: Annotated[
        bool,
        typer.Option(
            "--fixed-constants",
            help="tda with alpha 2 and beta 5 everywhere; by default it has its official "
            "constants of each data set, as in the paper: treat these as tuned on the test data.",
        ),
    ] = False,
    train: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A folder of class folders or a .csv, for the few-shot methods to learn from; it "
            "must have all classes by name.",
        ),
    ] = None,
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
    ray: RayOption = None,
) -> None:
    benchmark = str(context.info_name)
    if model is not None:
        model, pretrained = split_name(model, pretrained)
    pretrained = weights_of(model, pretrained)
    _refuse_options(
        benchmark,
        {
            "--data": data,
            "--incomplete": incomplete,
            "--tda-listing": tda_listing,
            "--per-class": per_class,
            "--datasets": datasets,
            "--train": train,
        },
    )
    if views == 1 and augmix:
        raise ValueError("--augmix changes the views, and there is one: say --views 64 as well")
    if views == 1 and stream_views:
        raise ValueError("--stream-views needs views: say --views 64 as well")
    dataset_names = tuple(name.strip() for name in (datasets or "").split(",") if name.strip())
    if benchmark in ("ood", "cross") and (data is None or not data.is_dir()):
        raise ValueError(f"bench {benchmark}: --data must be the folder that holds the data sets")
    opened = _model(benchmark, model, pretrained, device, precision, threads)
    source: Source
    if benchmark == "icons":
        size = opened.encoder.preprocess.size
        source = Icons(dataset_names, per_class or 16, shots, size=size)
    elif benchmark == "folder":
        source = Folders(tuple(paths or ()), train, shots)
    else:
        assert data is not None
        source = OnDisk(benchmark, data, dataset_names, shots, incomplete, tda_listing)

    def plan_of(*names: str) -> Plan:
        return Plan(
            source, names, orders, order, tune_on, views, stream_views, fallback, fixed_constants
        )

    plan = plan_of(*_methods(methods, views, plan_of, opened))
    if train is not None and not any(card(name).few_shot for name in plan.methods):
        raise ValueError(
            "--train is for few-shot methods to learn from, and none was asked for: say --methods "
            "gda,tip-adapter, or leave it out"
        )
    _stop_at(plan.problems(), on_disk=benchmark in ("ood", "cross"))
    _say_unusual(plan)
    tunes = any(card(name).tunes_prompts for name in plan.methods)
    tunable = [opened.tunable] if tunes else []  # what it lacks is said before the work
    prompts = templates(prompt) if prompt else None
    places = Places(source, opened, output, prompts, augmix, batch)
    gpus = 0 if ray is None else gpus_of(*(e.device for e in (opened.encoder, *tunable)))
    _report(plan, places, ray, threads or 1, gpus)


def _report(plan: Plan, places: Places, ray: str | None, cpus: int, gpus: int) -> None:
    """Run what is missing, and show all."""
    cells = cells_of(plan, places)
    cluster = nullcontext() if ray is None else working(ray, cpus=cpus, gpus=gpus)
    with cluster as runner, progress_bar() as progress:
        task = progress.add_task("cells", total=run.work(cells, places))
        records = run.run(
            cells,
            places,
            lambda what, amount: progress.update(task, advance=amount, description=what),
            run.one_by_one if runner is None else partial(records_by, runner),
        )
    if places.broken:
        say_broken({f"{name}: {key}": why for (name, key), why in places.broken.items()})
    for table in tables(records):
        out.print(*_tables.drawn(table, out.width), sep="\n")
    for line in _partial(records):
        err.print(f"[bold yellow]{shown(line)}[/]", soft_wrap=True, highlight=False)
    written = counted(len(records), "record")
    out.print(f"{written} in {places.results / 'records'}", soft_wrap=True, highlight=False)


def _hiding(*names: str) -> type[TyperCommand]:
    """A command whose help leaves out what only others take; said all the same, it is refused."""

    class Command(TyperCommand):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            # Typer gives every benchmark the same function; only `folder` takes an argument.
            if "paths" in names:
                self.params = [p for p in self.params if p.name != "paths"]
            for parameter in self.params:
                if isinstance(parameter, TyperOption) and parameter.name in names:
                    parameter.hidden = True

    return Command


app.command(
    "ood",
    cls=_hiding("paths", "per_class", "train"),
    help="ImageNet and its variants -A, -V2, -R and -Sketch. For the paper's setting on the "
    "variants add `--views 64 --augmix --stream-views`, as TDA has it.",
)(bench_)
app.command(
    "cross",
    cls=_hiding("paths", "per_class", "tda_listing", "train"),
    help="The ten fine-grained data sets, from Aircraft to UCF101.",
)(bench_)
app.command(
    "icons",
    cls=_hiding("paths", "data", "incomplete", "tda_listing", "fixed_constants", "train"),
    help="Five domains of icons that mirror the OOD benchmark: no data, no network.",
)(bench_)
app.command(
    "folder",
    cls=_hiding("data", "datasets", "incomplete", "tda_listing", "per_class", "fixed_constants"),
    help="Your own labelled images: folders of class folders, or .csv files with the columns path "
    "and label. Each is a data set; `--train` names one for the few-shot methods to learn from.",
)(bench_)
app.command("efficiency")(efficiency_)


# Before any encoding --------------------------------------------------------------------------


def _methods(
    methods: str | None, views: int, plan_of: Callable[..., Plan], model: BenchModel
) -> tuple[str, ...]:
    if methods == "all":
        names, reasons = runnable(plan_of, model)
        for name, why in reasons.items():
            err.print(f"[yellow]{name} left out:[/] {shown(why)}", soft_wrap=True, highlight=False)
        return tuple(names)
    if methods is not None:
        return tuple(method_names(methods))
    on_views = [
        name
        for name in list_methods(family="episodic")
        if card(name).needs == {"views"} and card(name).min_views <= views
    ]
    return (*list_methods(family="stream"), *on_views)


def _model(
    benchmark: str,
    model: str | None,
    pretrained: str | None,
    device: str,
    precision: str,
    threads: int | None,
) -> BenchModel:
    """The model that the options name, which is opened when it is first needed."""
    if model is None and benchmark != "icons":
        raise ValueError(
            f"bench {benchmark}: say --model, ViT-B-16 or RN50 as in the paper, or another "
            "open_clip name with --pretrained; tiny knows icons only"
        )
    model = model or TINY
    # Other weights are another model: their records never share a row, nor stand by the paper's.
    model_name = model if pretrained in (None, "openai") else f"{model}:{Path(pretrained).name}"
    settings: dict[str, Any] = {"device": device, "precision": precision, "threads": threads}
    # The embedded model has another form that passes gradients; open_clip's do so themselves.
    gradients = partial(load_encoder, model, device=device, threads=threads, gradients=True)
    tunable = gradients if model == TINY else None
    if benchmark == "icons":
        return BenchModel(model_name, partial(load_encoder, model, pretrained, **settings), tunable)
    return BenchModel(model_name, partial(open_encoder, model, pretrained, **settings), tunable)


def _refuse_options(benchmark: str, options: dict[str, object]) -> None:
    """An option that would be ignored is a misunderstanding."""
    for option, value in options.items():
        if value in (None, False) or benchmark in _TAKERS[option]:
            continue
        if benchmark == "icons":
            raise ValueError(f"bench icons: draws its images, {option} has no place here")
        takers = " and ".join(_TAKERS[option])
        raise ValueError(f"bench {benchmark}: {option} is for {takers}")


def _stop_at(problems: list[str], *, on_disk: bool) -> None:
    """All problems at once: nobody wants to find them one run after the other."""
    if not problems:
        return
    err.print(f"[bold red]error:[/] {counted(len(problems), 'problem')}, nothing was encoded:")
    for problem in problems:
        err.print(f"  {escape(problem)}", soft_wrap=True, highlight=False)
    if on_disk:
        err.print("--datasets leaves sets out, --incomplete goes on without missing images")
    raise typer.Exit(2)


def _say_unusual(plan: Plan) -> None:
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
        name, there, left_out = record.dataset, record.samples or 0, record.left_out
        if left_out and record.expected is not None:
            lines.append(_of_all(name, there, record.expected))
        elif left_out:
            lines.append(f"{name}: {counted(left_out, 'image')} left out, {there} scored")
    return list(dict.fromkeys(lines))
