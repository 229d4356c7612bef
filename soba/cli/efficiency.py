"""`soba bench efficiency`: what adapting costs beside encoding."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import soba
from soba.bench.feature_cache import FeatureFolder, seconds_of
from soba.cli import _tables
from soba.cli._common import (
    Device,
    Precision,
    Pretrained,
    Threads,
    check_folder,
    err,
    method_names,
    out,
    progress_bar,
    shown,
    weights_of,
)
from soba.datasets.icons import icons
from soba.encode.encoder import TINY, Encoder, load_encoder
from soba.registry import card
from soba.studies.efficiency import (
    Measured,
    costs,
    encode_rate,
    most_images,
    papers_methods,
    prepared,
    write_costs,
)

_VIEWS = 64  # TPT's
Step = Callable[[str, int], None]


def efficiency_(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FEATURES", help="Labelled features; default: icons, encoded now."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The encoder to time, which made FEATURES; default: what `soba bench` noted for "
            "them, and `tiny` for icons."
        ),
    ] = None,
    pretrained: Pretrained = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Comma-separated names; default: those of the paper's table that run."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Streams to take the median of.")] = 3,
    per_class: Annotated[int, typer.Option(min=1, help="Icons per class.")] = 5,
    views: Annotated[
        int | None,
        typer.Option(
            min=2, help=f"Views of each icon, for methods that need them; default: {_VIEWS}."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Also as JSON; `soba report RESULTS` shows RESULTS/efficiency*.json.",
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    threads: Threads = None,
) -> None:
    """The paper's runtime table on this machine: encoding and adapting, as ratios to zero-shot.

    The table has zero-shot, tpt, difftpt, tda and soba; those that cannot run are named, with the
    reason. Methods that can do with one view get one, and pay for encoding one. Those that need
    many, and those that tune prompts, are timed on a few images only. An encoder that is named is
    timed on pictures of a usual size, decoding left out.
    """
    names = papers_methods() if methods is None else method_names(methods)
    check_folder(output)
    if file is None:
        model = model or TINY
    elif views is not None:
        raise ValueError(f"--views is for icons: {file} has the views it has")
    encoder = tunable = None
    reasons: dict[str, str] = {}
    if model is not None:
        weights = weights_of(model, pretrained)
        encoder = load_encoder(model, weights, device=device, precision=precision, threads=threads)
        try:
            tunable = _tunable(model, weights, encoder, names, device, threads)
        except (ImportError, ValueError) as error:
            if methods is not None:
                raise
            reasons = {name: str(error) for name in names if card(name).tunes_prompts}
            names = [name for name in names if name not in reasons]
    with progress_bar() as progress:
        task = progress.add_task("", total=None)

        def step(what: str, amount: int) -> None:
            progress.update(task, advance=amount, description=what)

        many = None
        if file is not None:
            features = soba.FeatureSet.load(file)
        else:
            assert encoder is not None
            features, many = _icon_features(encoder, per_class, names, views or _VIEWS, step)
        if encoder is not None and encoder.width != features.dim:
            raise ValueError(
                f"{file}: has {features.dim} dimensions where {encoder.name} has {encoder.width}"
            )
        step("checking the methods", 0)
        given, problems = prepared(features, names, views=many, tunable=tunable)
        if problems and (methods is not None or "zero-shot" in problems):
            raise ValueError("; ".join(dict.fromkeys(problems.values())))
        reasons |= problems
        per_image = None
        if encoder is not None:
            step("timing the encoder", 0)
            per_image = encode_rate(encoder)
        elif file is not None and (noted := seconds_of(file)):
            per_image = noted / (len(features) * features.views)
        progress.reset(task, total=len(given) * repeats)
        measured_costs = costs(given, seconds_per_image=per_image, repeats=repeats, step=step)
    for name, why in reasons.items():
        err.print(f"[yellow]{name} left out:[/] {shown(why)}", soft_wrap=True, highlight=False)
    title = "icons-source" if file is None else file.stem.encode("utf-8", "replace").decode()
    measured = Measured(title, len(features), features.n_classes, tuple(measured_costs))
    out.print(_tables.costs(measured))
    if output is not None:
        write_costs(output, measured)
        out.print(f"costs in {shown(output)}", soft_wrap=True, highlight=False)


def _tunable(
    model: str,
    weights: str | None,
    encoder: Encoder,
    methods: Sequence[str],
    device: str,
    threads: int | None,
) -> Encoder | None:
    """The same model as one that passes gradients on, if a method wants any."""
    if not any(card(name).tunes_prompts for name in methods):
        return None
    if encoder.text_tower is not None:
        return encoder
    return load_encoder(model, weights, device=device, threads=threads, gradients=True)


def _icon_features(
    encoder: Encoder, per_class: int, methods: Sequence[str], views: int, step: Step
) -> tuple[soba.FeatureSet, soba.FeatureSet | None]:
    """The source domain, and as many of its images as needed with views, if a method needs any."""
    images = icons("source", per_class, size=encoder.preprocess.size)
    with tempfile.TemporaryDirectory() as place:

        def encoded(folder: FeatureFolder, what: str) -> soba.FeatureSet:
            features, _ = folder.get(images, lambda done: step(what, done))
            held = np.array(features.image_features)  # the file goes with the folder
            return dataclasses.replace(features, image_features=held, source=Path(images.name))

        single = encoded(FeatureFolder(Path(place), encoder), "encoding icons")
        on_views = [name for name in methods if card(name).min_views > 1]
        if not on_views:
            return single, None
        assert images.labels is not None
        rows = np.random.default_rng(0).permutation(len(images))[: max(map(most_images, on_views))]
        images = dataclasses.replace(
            images, keys=tuple(images.keys[row] for row in rows), labels=images.labels[rows]
        )
        several = FeatureFolder(Path(place), encoder, views=views)
        return single, encoded(several, f"encoding {views} views of icons")
