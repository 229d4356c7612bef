"""`soba check`: does adapting help here?"""

from __future__ import annotations

import csv
import math
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import soba
from soba._feature_files import READERS
from soba._files import replacing
from soba.cli._common import (
    Batch,
    Classes,
    Device,
    Model,
    Precision,
    Pretrained,
    Templates,
    Threads,
    check_folder,
    class_names,
    counted,
    expectation,
    open_encoder,
    out,
    positive_number,
    say_broken,
    shown,
    speed_bar,
)
from soba.cli._prompt_hints import say_hints
from soba.datasets import ImageSet, load_images
from soba.datasets.folder import from_folder
from soba.encode.encoder import TINY
from soba.encode.image_files import folder_images
from soba.encode.prompts import templates as read_templates
from soba.report.check_plot import check_plot
from soba.report.plots import check_pictures
from soba.studies.check import (
    INTERVAL,
    KNOWN_ERROR_ADAPTED,
    KNOWN_ERROR_SETS,
    KNOWN_ERROR_WRONG_SIGN,
    KNOWN_ERROR_ZERO_SHOT,
    POWER,
    Answers,
    Checked,
    Range,
    answer_all,
    check,
    images_to_label,
    tally,
)
from soba.studies.few_labels import Draw, SomeLabelled, class_names_of, of_features, of_images
from soba.studies.prompts import RankedTemplate, prompt_hints, rank_templates

_COMMAND = soba.__name__
_FEW = 16  # images of a class: with fewer SOBA+ has little evidence
_LISTED = 10  # images to label that are named; a table names all


def check_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|FEATURES",
            help="Images (a folder, a pattern, a .csv or .txt of paths), or a feature file.",
        ),
    ],
    labelled: Annotated[
        str | None,
        typer.Option(
            metavar="FEW",
            help="A few labels: a .csv of path and label, a folder of class folders, or, where the "
            "images come with labels, how many to use of each class, or `all`.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn by chance.")] = 0,
    transductive: Annotated[
        bool,
        typer.Option("--transductive", help="Ask about `soba classify --transductive` instead."),
    ] = False,
    to_label: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Write the images to label as a table to fill in."),
    ] = None,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="Also: names and templates the images contradict.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", "-o", metavar="PNG", help="Draw the result.")
    ] = None,
    classes: Classes = None,
    classes_file: Annotated[
        Path | None, typer.Option(help="Class names, one per line, or a .json list.")
    ] = None,
    model: Model = "tiny",
    pretrained: Pretrained = None,
    prompt: Templates = None,
    batch: Batch = 64,
    device: Device = "auto",
    precision: Precision = "fp32",
    threads: Threads = None,
) -> None:
    """Find out from a few labelled images whether adapting helps here: yes, no, or too few to tell.

    SOBA+ sees all images without labels; then it and zero-shot answer the labelled ones. Where
    these are too few, the images that would tell most are named. Without labels there is only the
    estimate that SOBA+ makes of itself, which is far off where CLIP is, and never a yes.
    """
    for path in (plot, to_label):
        check_folder(path)
    if plot is not None:
        check_pictures()
    wanted = _wanted(labelled, seed)
    options = {
        "--classes": classes,
        "--classes-file": classes_file,
        "--model": None if model == "tiny" else model,
        "--pretrained": pretrained,
        "--templates": prompt,
    }
    given = [word for name, value in options.items() if value for word in (name, str(value))]
    if is_features := Path(source).suffix in READERS:
        if given:
            raise ValueError(f"{source}: a feature file has its own classes: leave {given[0]} out")
        images = of_features(soba.FeatureSet.load(source), wanted)
        images.features.check_values()
    else:
        names = None if not (classes or classes_file) else class_names(classes, classes_file)
        image_set = _listed(source, names, wanted)
        encoder = open_encoder(model, pretrained, device, precision, threads)
        asked = prompt or ("icon" if encoder.name == TINY else "single")
        with speed_bar() as progress:
            task = progress.add_task("images", total=len(image_set))
            images = of_images(
                encoder,
                image_set,
                wanted,
                read_templates(asked),
                batch=batch,
                step=lambda done: progress.update(task, completed=done),
            )
    if images.broken:
        say_broken(dict(images.broken))
    answers = answer_all(images.features, transductive=transductive)
    run = _Run(source, images, answers, _checked(answers, images), wanted, given)
    run.say(transductive, to_label, seed, is_features)
    if prompts:
        _check_prompts(images, answers)
    if plot is not None:
        verdict = run.verdict().replace(", these", "")  # which the picture does not name
        check_plot(plot, run.checked, title=run.about(), verdict=verdict)
        out.print(f"picture in {shown(plot)}", soft_wrap=True)


@dataclass(frozen=True)
class _Run:
    """What came of one run, and how it is said."""

    source: str
    images: SomeLabelled
    answers: Answers
    checked: Checked
    wanted: Draw | Path | None
    given: list[str]  # options that name classes and encoder

    def say(self, transductive: bool, to_label: Path | None, seed: int, is_features: bool) -> None:
        counts, features = self.checked.tally, self.images.features
        _print(self.about())
        how = (
            "all images answered at once, each in the light of all the others"
            if transductive
            else "scored after one pass over all images"
        )
        _print(f"SOBA+, no labels seen, {how}")
        if counts.labelled:
            out.print(_table(self.checked))
        else:
            self._say_estimate()
        _print(
            f"answered differently by SOBA+ and zero-shot: {counts.differ} of {counts.images} "
            f"images, so at most {counts.at_stake:.1f} points are at stake"
        )
        if counts.labelled and counts.differ:
            _print(
                f"labelled of these: {counts.differ_labelled}; SOBA+ is right on {counts.won}, "
                f"zero-shot on {counts.lost}, neither on {counts.neither}"
            )
        style = {"yes": "green", "no": "red"}.get(self.checked.verdict, "yellow")
        out.print(f"[bold {style}]{shown(self.verdict())}[/]", soft_wrap=True, highlight=False)
        rows = images_to_label(self.answers, self.images.labels, self.checked.more, seed=seed)
        for row in rows[:_LISTED].tolist():
            _print(f"  {self.images.key(row)}")
        if len(rows) > _LISTED:
            _print(f"  ... and {len(rows) - _LISTED} more")
        if to_label is not None and len(rows):
            self._write(to_label, rows)
        if not counts.labelled and features.labels is not None:
            _print("the file has labels: --labelled 3 uses three of each class, `all` all of them")
        _print(f"next: {self._next(transductive, to_label, is_features)}")

    def about(self) -> str:
        """One line: which images, and how many of them are labelled."""
        counts = self.checked.tally
        classes = counted(self.images.features.n_classes, "class")
        images = f"{counted(counts.images, 'image')}, {classes}"
        return f"{Path(self.source).name}: {images}, {counts.labelled} labelled"

    def verdict(self) -> str:
        """The verdict, and why."""
        checked, counts = self.checked, self.checked.tally
        if not self.answers.learned:
            return f"too few to tell: SOBA+ learns nothing from {counted(counts.images, 'image')}"
        if not counts.differ:
            few = counts.images < _FEW * self.images.features.n_classes
            yet = " yet: so few images teach it little" if few else ""
            alike = "SOBA+ and zero-shot answer all images alike"
            return f"no: {alike}, so adapting changes nothing{yet}"
        if checked.verdict == "too few to tell":
            enough = f"{POWER:.0%} likely to be enough"
            if checked.more == counts.open:
                enough = "all that are answered differently: then it is known"
            return f"too few to tell: label {checked.more} more, these ({enough})"
        if not counts.open:
            why = "every image that is answered differently is labelled"
        else:
            p = checked.p_gain if checked.verdict == "yes" else checked.p_harm
            why = f"exact sign test, one-sided: p = {p:.2g}"
        if checked.verdict == "yes":
            return f"yes: adapting helps here ({why})"
        what = "does harm" if counts.lost > counts.won else "gains nothing"
        return f"no: adapting {what} here ({why})"

    def _say_estimate(self) -> None:
        estimate = self.answers.expected
        if estimate is None:
            return
        _print(expectation(estimate.zero_shot, estimate.adapted))
        zero_shot, adapted = KNOWN_ERROR_ZERO_SHOT, KNOWN_ERROR_ADAPTED
        _print(
            f"which is a guess: on {KNOWN_ERROR_SETS} sets with labels it was off by "
            f"{zero_shot[0]:+.1f} to {zero_shot[1]:+.1f} points for CLIP and {adapted[0]:+.1f} to "
            f"{adapted[1]:+.1f} adapted, and said gain for loss on "
            f"{KNOWN_ERROR_WRONG_SIGN or 'none'} (docs/soba_plus.md)"
        )

    def _next(self, transductive: bool, to_label: Path | None, is_features: bool) -> str:
        """The command that goes on from here."""
        flag = ["--transductive"] if transductive else []
        again = [_COMMAND, "check", self.source, *self.given, *flag]
        if not self.answers.learned:
            return f"{shlex.join(again)}, with more images; labels would not help"
        if self.checked.verdict == "too few to tell":
            if isinstance(self.wanted, Draw):
                seed = ["--seed", str(self.wanted.seed)] if self.wanted.seed else []
                return shlex.join([*again, "--labelled", self._more_per_class(), *seed])
            if to_label is None:
                return shlex.join([*again, *self._labels(), "--to-label", "label-these.csv"])
            command = shlex.join([*again, "--labelled", str(to_label)])
            return f"fill in the labels in {to_label}, then {command}"
        helps = self.checked.verdict == "yes"
        if is_features:
            if not helps:
                return "nothing to run: stay with zero-shot"
            file = [self.source, "--methods", "zero-shot,soba+", *flag]
            return shlex.join([_COMMAND, "eval", *file])
        method = [] if helps else ["--method", "zero-shot"]
        given = self.given
        if not {"--classes", "--classes-file"} & set(given):
            given = ["--classes", ",".join(class_names_of(self.images.features)), *given]
        how = flag if helps else []
        return shlex.join(
            [_COMMAND, "classify", self.source, *given, *method, *how, "-o", "answers.html"]
        )

    def _labels(self) -> list[str]:
        return [] if self.wanted is None else ["--labelled", str(self.wanted)]

    def _more_per_class(self) -> str:
        assert isinstance(self.wanted, Draw)
        counts, now = self.checked.tally, self.wanted.per_class or 1
        expected = max(counts.labelled * counts.differ / counts.images, 1e-9)
        wanted = math.ceil(now * (counts.differ_labelled + self.checked.more) / expected)
        is_all = wanted * self.images.features.n_classes >= counts.images
        return "all" if is_all else str(wanted)

    def _write(self, path: Path, rows: np.ndarray) -> None:
        """What is labelled, and what is to be; without the answers, which nobody should copy."""
        labels, names = self.images.labels, class_names_of(self.images.features)
        done = np.flatnonzero(labels >= 0)
        with (
            replacing(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            table = csv.writer(file)
            table.writerow(["path", "label"])
            for row in (*done.tolist(), *rows.tolist()):
                key = self.images.key(row)
                key = os.path.abspath(key) if os.path.isfile(key) else key
                table.writerow([key, names[labels[row]] if labels[row] >= 0 else ""])
        _print(f"to be labelled: {counted(len(rows), 'image')} in {path}")


def _checked(answers: Answers, images: SomeLabelled) -> Checked:
    return check(tally(answers, images.labels), learned=answers.learned)


def _wanted(labelled: str | None, seed: int) -> Draw | Path | None:
    if labelled is None:
        return None
    if labelled == "all":
        return Draw(None, seed)
    if Path(labelled).exists():
        return Path(labelled)
    if labelled.lstrip("-").isdecimal():
        return Draw(positive_number(labelled, "--labelled"), seed)
    raise ValueError(f"--labelled {labelled}: no such file or folder, no number, and not `all`")


def _listed(source: str, names: tuple[str, ...] | None, wanted: Draw | Path | None) -> ImageSet:
    """The images; folders are classes where they name them, or where their labels are wanted."""
    if names is not None and os.path.isdir(source) and not isinstance(wanted, Draw):
        return from_folder(source, names, labelled=False)
    if os.path.isdir(source) and all(folder_images(Path(source))):
        raise ValueError(
            f"{source}: holds both images and folders of images; --classes takes all of them, "
            "without labels"
        )
    images = load_images(source, names)
    if not images.class_names:
        raise ValueError(f"{source}: has no class folders; say which classes there are: --classes")
    return images


def _table(checked: Checked) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("top-1 %", justify="right")
    table.add_column(f"{INTERVAL:.0%} interval", justify="right")
    for name, value in (("zero-shot", checked.zero_shot), ("SOBA+", checked.adapted)):
        if value is None:
            table.add_row(name, "?", "no label where both agree")
        else:
            table.add_row(name, *_cells(value, ".1f"))
    gain, interval = _cells(checked.gain, "+.1f")
    table.add_row("gain", gain if checked.gain_is_known else "?", interval)
    return table


def _cells(value: Range, form: str) -> tuple[str, str]:
    return f"{value.estimate:{form}}", f"{value.low:{form}} to {value.high:{form}}"


def _check_prompts(images: SomeLabelled, answers: Answers) -> None:
    features = images.features
    rows = np.asarray(features.image_features, np.float32)
    if rows.ndim == 3:  # the mean of the views stands for an image
        rows = rows.mean(axis=1)
    hints = prompt_hints(features.text_features, rows, answers.zero_shot, answers.adapted)
    ranked: tuple[RankedTemplate, ...] = ()
    if features.prompt_features is not None:
        each = np.asarray(features.prompt_features, np.float32)
        titles = features.prompts or [f"prompt {number}" for number in range(len(each))]
        ranked = rank_templates(titles, each, rows, answers.adapted)
    say_hints(hints, ranked, class_names_of(features))


def _print(line: str) -> None:
    out.print(shown(line), soft_wrap=True, highlight=False)
