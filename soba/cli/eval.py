"""`soba eval`: methods on shuffled streams of a feature file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import soba
from soba.bench.evaluate import (
    COVERAGES,
    checked_settings,
    evaluate,
    streams,
    summarise,
    transduces,
)
from soba.bench.method_factory import MethodFactory
from soba.cli._common import (
    File,
    JsonPath,
    Pretrained,
    StreamMethods,
    check_folder,
    counted,
    expectation,
    method_names,
    out,
    positive_number,
    progress_bar,
    write_json,
)
from soba.encode.encoder import load_encoder
from soba.registry import card, list_methods
from soba.report.method_looks import line_style
from soba.report.plots import check_pictures, curves


def eval_(
    file: File,
    methods: StreamMethods = None,
    orders: Annotated[int, typer.Option(min=1, help="Shuffled streams, seeds 0 to ORDERS-1.")] = 5,
    transductive: Annotated[
        bool,
        typer.Option(
            "--transductive",
            help="Methods that can see the whole set at once do; default then: zero-shot and they.",
        ),
    ] = False,
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
        typer.Option(help="How to read SOBA's formula: whitened, gda, dual or literal."),
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
    model: Annotated[
        str | None,
        typer.Option(
            help="For tpt, difftpt, histpt, coop, cocoop: the model that made the features."
        ),
    ] = None,
    pretrained: Pretrained = None,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="Run difftpt without generated views, and say so.")
    ] = False,
    min_confidence: Annotated[
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
    names = _chosen(methods, transductive)
    for path in (json_path, curve):
        check_folder(path)
    if curve is not None:
        check_pictures()
    features = soba.FeatureSet.load(file)
    source = None if support is None else soba.FeatureSet.load(support)
    if source is not None and (
        source.class_names == features.class_names or source.class_names is None
    ):
        features, source = features.with_support(source), None
    if val is not None:
        features = features.with_val(soba.FeatureSet.load(val))
    overrides: dict[str, Any] = {"alpha": alpha, "beta": beta, "reading": reading}
    overrides["fallback"] = True if fallback else None
    overrides = {key: value for key, value in overrides.items() if value is not None}
    if capacity is not None:
        overrides["capacity"] = (
            None if capacity == "full" else positive_number(capacity, "--capacity")
        )
    if refresh is not None:
        word = refresh in ("tenths", "growth")
        overrides["refresh"] = refresh if word else positive_number(refresh, "--refresh")

    factory = MethodFactory(features, source=source)
    checked_settings(factory, names, overrides)  # before a model is loaded
    if model is not None and any(card(name).tunes_prompts for name in names):
        factory.encoder = load_encoder(model, pretrained, gradients=True)
    total = sum(streams(name, orders, transductive) for name in names)
    with progress_bar() as progress:
        task = progress.add_task("streams", total=total)

        def step(method: str, seed: int) -> None:
            progress.update(task, advance=1, description=f"{method}, order {seed}")

        records = evaluate(
            features,
            names,
            orders=orders,
            overrides=overrides,
            min_confidence=min_confidence,
            step=step,
            factory=factory,
            transductive=transductive,
        )
    summary = summarise(records)
    write_json(json_path, [record.to_json() for record in records], summary)
    counts = ((len(features), "image"), (features.n_classes, "class"), (orders, "order"))
    title = f"{file.name}: {', '.join(counted(*each) for each in counts)}"
    _show(summary, title, min_confidence)
    if curve is not None:
        curves(
            curve,
            {_label(row): (100 * COVERAGES, row["accuracy_at_coverage"]) for row in summary},
            styles={_label(row): line_style(row["method"]) for row in summary},
            title=f"{file.stem}: only the surest answered",
            x_label="coverage, % of the images",
            y_label="top-1 % of the answered",
        )
        out.print(f"accuracy over coverage in {curve}", soft_wrap=True)


def _chosen(methods: str | None, transductive: bool) -> list[str]:
    """The methods to run, by name."""
    if not transductive:
        return method_names(methods)
    able = [name for name in list_methods() if transduces(name)]
    names = ["zero-shot", *able] if methods is None else method_names(methods)
    if not set(names) & set(able):
        raise ValueError(
            f"--transductive: none of {', '.join(names)} can see a whole set at once; "
            f"there are: {', '.join(able)}"
        )
    return names


def _label(row: dict[str, Any]) -> str:
    return f"{row['method']} (transductive)" if row["transductive"] else str(row["method"])


def _show(summary: list[dict[str, Any]], title: str, min_confidence: float) -> None:
    out.print(_table(summary, title, min_confidence))
    for line in _expectations(summary):
        out.print(line, soft_wrap=True, highlight=False)


def _expectations(summary: list[dict[str, Any]]) -> list[str]:
    """What methods expect without labels, beside what the labels say; a line each."""
    plain = [row["accuracy_mean"] for row in summary if row["method"] == "zero-shot"]
    lines = []
    for row in summary:
        expected = row["expected_accuracy"]
        if expected is None:
            continue
        shares = (expected[name] / 100.0 for name in ("zero_shot", "adapted"))
        truth = " and ".join(f"{score:.0f}%" for score in (*plain, row["accuracy_mean"]))
        of_what = "" if plain else ", adapted"
        lines.append(f"{_label(row)}: {expectation(*shares)}; by the labels{of_what}: {truth}")
    return lines


def _table(summary: list[dict[str, Any]], title: str, min_confidence: float) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    headings = ["top-1 %", "std", "gain", "calibration error %", "seconds"]
    if min_confidence:
        headings += ["answered %", "right of them %"]
    for heading in headings:
        table.add_column(heading, justify="right")
    best = max(row["accuracy_mean"] for row in summary)
    for row in summary:
        score = f"{row['accuracy_mean']:.2f}"
        right = row["accuracy_answered"]
        answered = [f"{row['answered']:.1f}", "" if right is None else f"{right:.2f}"]
        table.add_row(
            _label(row),
            f"[bold]{score}[/]" if row["accuracy_mean"] == best else score,
            f"{row['accuracy_std']:.2f}",
            "" if row["gain"] is None else f"{row['gain']:+.2f}",
            f"{row['calibration_error']:.2f}",
            f"{row['seconds']:.3f}",
            *(answered if min_confidence else []),
        )
    return table
