"""`soba classify`: label images as a stream, adapting on the way, or as one set."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from threadpoolctl import threadpool_limits

import soba
from soba._files import alone, replacing
from soba.answers import FORMATS, Answer, AnswerWriter, answer_writer, check_format
from soba.classifier import Classifier
from soba.cli._answer_table import AnswerTable
from soba.cli._beginning import continued, given_text
from soba.cli._common import (
    Batch,
    Classes,
    Device,
    Model,
    Precision,
    Pretrained,
    StopRequest,
    Templates,
    Threads,
    check_folder,
    class_names,
    counted,
    err,
    expectation,
    open_encoder,
    out,
    per_second,
    say_broken,
    shown,
    speed_bar,
    stop_signals,
)
from soba.encode.archives import Archive
from soba.encode.files import is_remote
from soba.encode.image_files import some
from soba.encode.images import list_entries, list_images
from soba.encode.pictures import NoPicture, Picture
from soba.registry import check_method
from soba.serve.durable import DurableStream

_SAVE_EVERY = 30.0  # seconds between two saves of the state


def classify_(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Folders, images, patterns such as 'shots/*.jpg', a .csv or .txt of paths, tars "
            "as of WebDataset ('train-{000..015}.tar'), .parquet with images, all of these by URL, "
            "too (s3://, gs://, https://), or `-`: paths from standard input, read to its end, one "
            "a line or separated by NUL."
        ),
    ],
    classes: Classes = None,
    classes_file: Annotated[
        Path | None, typer.Option(help="Class names, one per line, or a .json list.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="Write all answers: .csv, .jsonl, .parquet or .html.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Go on from this state if the file exists, and save to it in the end."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Learn in a database, every batch for good: sqlite:///FILE or postgresql://...",
        ),
    ] = None,
    stream: Annotated[
        str | None, typer.Option(metavar="NAME", help="The stream in --store to go on with.")
    ] = None,
    change_classes: Annotated[
        bool,
        typer.Option(help="Take the samples learned so far over to other classes or prompts."),
    ] = False,
    transductive: Annotated[
        bool,
        typer.Option(
            "--transductive",
            help="Answer all images at once, each in the light of all the others; learns nothing.",
        ),
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Classes per image, with probabilities.")] = 3,
    method: Annotated[str, typer.Option(help="`zero-shot`, `soba+` or another stream method.")] = (
        "soba+"
    ),
    model: Model = "tiny",
    pretrained: Pretrained = None,
    prompt: Templates = None,
    text_features: Annotated[
        Path | None,
        typer.Option(help=".npy with a row per class, for an image tower without a text tower."),
    ] = None,
    batch: Batch = 64,
    device: Device = "auto",
    precision: Precision = "fp32",
    threads: Threads = None,
) -> None:
    """Label images as a stream: each is scored with what the ones before it have taught.

    With --transductive no image comes before another: all are encoded, then all are answered.

    Every answer comes with its probability and with plain CLIP's answer beside it. An image that
    was learned before, in this run or an earlier one with the same --state, is not learned twice.
    Any number of runs may share a --stream at the same time, and may be killed.
    Whatever cannot be read, be it an image or a path, is reported, listed in OUT and skipped.
    """
    names = class_names(classes, classes_file)
    check_method(method, transductive=transductive)
    if transductive and state is not None:
        raise ValueError("--transductive learns nothing, so there is no --state to keep")
    if (store is None) != (stream is None):
        raise ValueError("a stream in a database needs both: --store URL --stream NAME")
    if store is not None and (transductive or state is not None):
        raise ValueError("--store keeps what is learned: leave --state and --transductive out")
    if text_features is not None and prompt is not None:
        raise ValueError(
            "--templates make text features, and --text-features are some already: say one of them"
        )
    if output is not None:
        check_format(output)
    check_folder(output)
    check_folder(state)
    paths = _with_standard_input(paths)
    _check_apart(output, state, [*paths, classes_file, text_features])
    entries = _listed(paths)
    with ExitStack() as locks:
        for owned in (output, state):
            if owned is not None:
                locks.enter_context(alone(owned))
        encoder = open_encoder(model, pretrained, device, precision, threads)
        if text_features is None:
            fresh = Classifier(encoder, names, method=method, templates=prompt)
        else:
            text = given_text(text_features, len(names), encoder)
            adapter = soba.create_adapter(method, text, logit_scale=encoder.logit_scale)
            fresh = Classifier(encoder, names, method=adapter, templates=())
        durable = None
        if store is not None and stream is not None:
            durable = DurableStream(store, stream, fresh, change_classes=change_classes)
            locks.enter_context(durable)
        classifier = continued(fresh, state, change_classes)
        top = min(top, len(names))
        run = _Run(classifier, entries, top, batch, output, state, transductive, durable)
        exit_code = run.through()
    if exit_code:
        raise typer.Exit(exit_code)


@dataclass
class _Run:
    """One pass over the images, with what has come of it so far."""

    classifier: Classifier
    entries: list[Picture | Archive]
    top: int
    batch: int
    output: Path | None
    state: Path | None
    transductive: bool = False
    stream: DurableStream | None = None
    done: int = 0
    changed: int = 0
    broken: dict[str, str] = field(default_factory=dict)

    def through(self) -> int:
        """Answer all images, save and say what was done; the exit code of a signal, or 0.

        A signal ends the stream and keeps what is done: until all is saved it kills nothing.
        """
        started = time.perf_counter()
        with stop_signals() as stop:
            if self.output is None:
                self._write(AnswerTable(), stop)
            else:
                with replacing(self.output) as temporary:
                    self._write(answer_writer(self.output.suffix, temporary, self.top), stop)
            seconds = time.perf_counter() - started
            self._save()
        self._say(seconds)
        return stop.exit_code if stop.is_set() else 0

    def _write(self, writer: AnswerWriter, stop: StopRequest) -> None:
        saved = time.monotonic()
        # Threads of BLAS that wait for the next small product keep a core from the encoder.
        one_thread = threadpool_limits(1, user_api="blas")
        with one_thread, closing(writer), speed_bar() as progress:
            task = progress.add_task("images", total=_total(self.entries))
            pictures: Iterable[Picture] = list_images(self.entries)
            if self.transductive:  # the answers come at the end, all at once
                pictures = _drawn(pictures, stop, lambda: progress.advance(task))
            for number, answer in enumerate(self._answers(pictures), 1):
                self._count(answer)
                writer.add(answer)
                if self.transductive or number % self.batch:
                    continue  # the state is that of a whole batch
                progress.update(task, completed=number)
                if time.monotonic() - saved > _SAVE_EVERY:
                    self._save()
                    saved = time.monotonic()
                if stop.is_set():
                    break
            progress.update(task, completed=self.done + len(self.broken))
            if stop.is_set():
                err.print("interrupted: what is done is kept")
            if not self.done:
                if stop.is_set():  # too early to tell whether any image can be read
                    raise typer.Exit(stop.exit_code)
                self._say_broken()
                raise ValueError("none of the images could be read")

    def _answers(self, pictures: Iterable[Picture]) -> Iterator[Answer]:
        if self.stream is not None:
            return self.stream.classify(pictures, batch=self.batch, top=self.top)
        return self.classifier.classify(
            pictures,
            learn=self.classifier.learns,
            batch=self.batch,
            top=self.top,
            transductive=self.transductive,
        )

    def _count(self, answer: Answer) -> None:
        if answer.error:
            self.broken[answer.image] = answer.error
        else:
            self.done += 1
            self.changed += answer.label != answer.zero_shot

    def _save(self) -> None:
        if self.state is not None and self.classifier.learns:
            self.classifier.save(self.state)

    def _say(self, seconds: float) -> None:
        self._say_broken(self.output)
        learns = self.classifier.adapter.name != "zero-shot"
        changed = f", {self.changed} answered otherwise than by zero-shot" if learns else ""
        speed = f"{per_second(self.done, seconds)} images/s"
        out.print(
            f"{counted(self.done, 'image')} in {seconds:.1f} s, {speed}{changed}", highlight=False
        )
        learned = self.classifier if self.stream is None else self.stream.to_classifier()
        estimate = getattr(learned.adapter, "expected_accuracy", lambda: None)()
        if estimate is not None:
            out.print(expectation(estimate.zero_shot, estimate.adapted), highlight=False)
        if not self.classifier.learns:
            out.print(
                f"{shown(self.state)} was learned in shards: it answered, and learned nothing"
            )
        state = self.state if self.classifier.learns else None
        for path, what in ((self.output, "answers"), (state, "state")):
            if path is not None:
                out.print(f"{what} in {shown(path)}", soft_wrap=True)
        if self.stream is not None:
            count = counted(self.stream.n_seen, "image")
            learned_so_far = f"{count} learned, version {self.stream.version}"
            out.print(f"stream {shown(self.stream.name)}: {learned_so_far}", highlight=False)

    def _say_broken(self, listed_in: Path | None = None) -> None:
        if self.broken:
            say_broken(self.broken, listed_in=listed_in)


def _with_standard_input(paths: list[str]) -> list[str]:
    """The paths, with those that standard input names in the place of `-`."""
    given: list[str] = []
    for path in paths:
        if path != "-":
            given.append(path)
            continue
        if sys.stdin is None:  # closed by whoever started the command
            raise ValueError("standard input is closed, so that `-` names no paths")
        content = sys.stdin.buffer.read()
        separator = b"\0" if b"\0" in content else b"\n"  # names may hold anything but NUL
        lines = content.split(separator)
        if separator == b"\n":
            lines = [line.removesuffix(b"\r") for line in lines]
        given += [os.fsdecode(line) for line in lines if line]
    if not given:
        raise ValueError("standard input names no paths")
    return given


def _check_apart(
    output: Path | None, state: Path | None, read: Iterable[str | Path | None]
) -> None:
    """Neither result may be written over the other, nor the answers over what is read."""
    if output is None:
        return
    if state is not None and _same_file(output, state):
        raise ValueError(f"{output}: answers and state cannot be one file; name another --state")
    for path in read:
        # Only files that may be answers by their name: input may be a million images.
        if path is not None and Path(path).suffix.lower() in FORMATS and _same_file(output, path):
            raise ValueError(f"{output}: is read by this run; name another file for the answers")


def _same_file(one: str | Path, other: str | Path) -> bool:
    """Whether two names are of one file, through links and however they are spelled."""
    try:
        return os.path.samefile(one, other)
    except OSError:  # not both are there yet
        return os.path.realpath(one) == os.path.realpath(other)


def _listed(paths: list[str]) -> list[Picture | Archive]:
    """The images of all arguments in their order, each once, by paths as one would type them here.

    Archives are among them, unopened, and so is a bad argument, with what is wrong with it, unless
    all are bad.
    """
    entries = {entry.name: entry for entry in list_entries(paths)}
    problems = {e.name: e.problem for e in entries.values() if isinstance(e, NoPicture)}
    sound = (name for name in entries if name not in problems)
    if not any(is_remote(name) or os.path.isfile(name) for name in sound):
        lines = [f"{name}: {problems.get(name, 'not there')}" for name in entries]
        raise ValueError(f"no image found: {some(lines)}")
    return list(entries.values())


def _total(entries: Iterable[Picture | Archive]) -> int | None:
    """How many images there are; None where a tar has to be read to tell."""
    counts = [entry.count() if isinstance(entry, Archive) else 1 for entry in entries]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _drawn(
    pictures: Iterable[Picture], stop: StopRequest, advance: Callable[[], None]
) -> Iterator[Picture]:
    """The pictures, as many as are asked for before a signal."""
    for picture in pictures:
        if stop.is_set():
            return
        yield picture
        advance()
