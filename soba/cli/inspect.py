"""`soba inspect`: what a saved state knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import soba
from soba.classifier import Classifier
from soba.cli._common import (
    Classes,
    check_folder,
    class_names,
    counted,
    err,
    expectation,
    out,
    shown,
)
from soba.cli._prompt_hints import say_hints
from soba.encode.prompts import classifier as text_classifier
from soba.report.inspect_page import write_inspection
from soba.studies.inspection import Inspection, find_images, inspect
from soba.studies.prompts import RankedTemplate, prompt_hints, rank_templates

_LISTED = 10


def inspect_(
    state: Annotated[
        Path,
        typer.Argument(
            metavar="STATE", help="What `soba classify --state`, `soba learn` or `save` wrote."
        ),
    ],
    images: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Where the images are, to name and to show them."),
    ] = None,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="Also: names and templates the images contradict.")
    ] = False,
    classes: Classes = None,
    classes_file: Annotated[
        Path | None, typer.Option(help="Class names of a state that was learned from features.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="HTML", help="Write all of it as a page."),
    ] = None,
) -> None:
    """Look into a saved state: the evidence of each class, what it answers otherwise than CLIP.

    The samples that a state keeps are known by their content, so that --images finds their files
    under whatever names. Changes nothing; the encoder is opened for --prompts only, where a state
    has more than one template.
    """
    if output is not None and output.suffix != ".html":
        raise ValueError(f"{output}: the page is an .html file")
    check_folder(output)
    saved = soba.load(state)
    names = None if not (classes or classes_file) else class_names(classes, classes_file)
    if names is not None and isinstance(saved, Classifier):
        raise ValueError(f"{state}: knows the names of its classes: leave --classes out")
    inspection = inspect(saved, names)
    places = _places(inspection, images)
    _say(f"{state.name}: {_about(inspection)}")
    out.print(_class_table(inspection))
    _say_changes(inspection, places)
    hints, ranked = None, tuple[RankedTemplate, ...]()
    samples = inspection.samples
    if prompts:
        if not len(samples):
            raise ValueError(f"{state}: {inspection.method} keeps no samples to check prompts with")
        adapter = saved.adapter if isinstance(saved, Classifier) else saved
        answers = samples.zero_shot, samples.adapted
        hints = prompt_hints(adapter.text_features, samples.features, *answers)
        ranked = _ranked(saved, samples.features, samples.adapted)
        say_hints(hints, ranked, inspection.names)
    if output is not None:
        title = f"{state.name}: what it knows"
        write_inspection(output, inspection, places, title=title, hints=hints, templates=ranked)
        _say(f"page in {output}")


def _places(inspection: Inspection, images: str | None) -> dict[int, Path]:
    if images is None:
        return {}
    if inspection.id_space != "content":
        _warn("its samples are not known by the content of images, so no file can be found")
        return {}
    wanted = inspection.samples.ids.tolist()
    places = find_images(wanted, images)
    if len(places) < len(wanted):
        _warn(f"{len(wanted) - len(places)} of {counted(len(wanted), 'sample')} were not found")
    return places


def _ranked(saved: object, features: np.ndarray, adapted: np.ndarray) -> tuple[RankedTemplate, ...]:
    """The templates of a classifier, each by itself; one alone has no rivals."""
    if not isinstance(saved, Classifier) or len(saved.templates) < 2:
        return ()
    encode = saved.encoder.encode_texts
    each = (text_classifier(encode, saved.names, (template,)) for template in saved.templates)
    return rank_templates(saved.templates, each, features, adapted)


def _about(inspection: Inspection) -> str:
    classes = counted(len(inspection.names), "class")
    seen = f"{counted(inspection.n_seen, 'sample')} seen"
    kept = f"{len(inspection.samples)} kept" if len(inspection.samples) else "none kept"
    return f"{inspection.method}, {classes}, {seen}, {kept}"


def _class_table(inspection: Inspection) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    has_mass = any(each.mass is not None for each in inspection.classes)
    has_drawn = bool(inspection.samples.drawn.any())
    table.add_column("class")
    full = "" if inspection.capacity is None else f" of {inspection.capacity}"
    for queue in inspection.queues:
        table.add_column(
            f"{queue}{full}" if len(inspection.queues) == 1 else queue, justify="right"
        )
    headings = ["mean entropy"] if inspection.queues else []
    headings += ["mass"] if has_mass else []
    headings += ["drawn: zero-shot", "now"] if has_drawn else []
    for heading in headings:
        table.add_column(heading, justify="right")
    for each in inspection.classes:
        cells = [str(count) for count in each.queued]
        if inspection.queues:
            cells.append("" if each.mean_entropy is None else f"{each.mean_entropy:.3f}")
        if has_mass:
            cells.append("" if each.mass is None else f"{each.mass:.1f}")
        if has_drawn:
            cells += [str(each.zero_shot), str(each.adapted)]
        table.add_row(shown(each.name), *cells)
    return table


def _say_changes(inspection: Inspection, places: dict[int, Path]) -> None:
    samples, names = inspection.samples, inspection.names
    if not len(samples):
        _say(f"{inspection.method} keeps no samples, so what changed cannot be told")
        return
    for title, some in (
        ("samples drawn by chance from the stream", samples.drawn),
        ("samples in the queue, which CLIP is surest of", samples.queued),
    ):
        changed, total = inspection.changed_of(some)
        if total:
            share = f"{changed} of {total} ({changed / total:.1%})"
            _say(f"answered otherwise than by zero-shot, of the {title}: {share}")
    if inspection.changes:
        _say("from zero-shot's answer to the one now, of all samples kept:")
    for change in inspection.changes[:_LISTED]:
        _say(f"  {change.count} x {names[change.before]} -> {names[change.after]}")
    if len(inspection.changes) > _LISTED:
        _say(f"  ... and {len(inspection.changes) - _LISTED} more kinds")
    if inspection.expected is not None:
        _say(expectation(*inspection.expected))
    pictured = [row for row in np.flatnonzero(samples.changed) if int(samples.ids[row]) in places]
    for row in pictured[:_LISTED]:
        before, after = names[samples.zero_shot[row]], names[samples.adapted[row]]
        _say(f"  {places[int(samples.ids[row])]}: {before} -> {after}")
    if len(pictured) > _LISTED:
        _say(f"  ... and {len(pictured) - _LISTED} more images; -o page.html shows them")


def _say(line: str) -> None:
    out.print(shown(line), soft_wrap=True, highlight=False)


def _warn(line: str) -> None:
    err.print(f"[yellow]{shown(line)}[/]", soft_wrap=True, highlight=False)
