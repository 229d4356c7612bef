"""`soba classify`: label images as a stream, adapting on the way."""

from __future__ import annotations

import hashlib
import io
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from PIL import Image
from rich.table import Table
from threadpoolctl import threadpool_limits

import soba
from soba._files import replacing
from soba.adapt._few_shot import FewShotAdapter
from soba.adapt.base import Adapter, read_note
from soba.bench.metrics import softmax
from soba.cli._common import (
    Batch,
    Device,
    Model,
    Precision,
    Pretrained,
    Templates,
    Threads,
    check_folder,
    err,
    open_encoder,
    out,
    say_broken,
    shown,
    speed_bar,
)
from soba.cli._rows import FORMATS, Row, Writer, writer
from soba.datasets import ImageSet, load_images
from soba.datasets.folder import from_folder
from soba.encode.encoder import Encoder
from soba.encode.load import TINY
from soba.encode.pipeline import encode
from soba.encode.prompts import classifier, read_class_names, templates
from soba.registry import adapter_class, list_tuners

_SAVE_EVERY = 30.0  # seconds between two saves of the state


def classify_(
    paths: Annotated[
        list[str],
        typer.Argument(help="Folders, images, patterns such as 'shots/*.jpg', or a .csv of paths."),
    ],
    classes: Annotated[
        str | None, typer.Option(help="Class names, comma-separated: cat,dog.")
    ] = None,
    classes_file: Annotated[
        Path | None, typer.Option(help="Class names, one per line, or a .json list.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Write all answers: .csv, .jsonl or .html."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Go on from this state if the file exists, and save to it in the end."),
    ] = None,
    change_classes: Annotated[
        bool,
        typer.Option(help="Take the samples of --state over to another class list or prompts."),
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

    Every answer comes with its probability and with plain CLIP's answer beside it. An image that
    was learned before, in this run or an earlier one with the same --state, is not learned twice.
    Broken images are reported and skipped.
    """
    names = _class_names(classes, classes_file)
    _check_method(method)
    if output is not None and output.suffix not in FORMATS:
        raise ValueError(f"{output}: answers are written as {', '.join(FORMATS)}")
    check_folder(output)
    check_folder(state)
    images = ContentSet.of(_listed(paths))
    encoder = open_encoder(model, pretrained, device, precision, threads)
    prompts = templates(prompt or ("icon" if encoder.name == TINY else "single"))
    if text_features is None:
        text = classifier(encoder.encode_texts, names, prompts)
    else:
        text = _given_text(text_features, len(names), encoder)
    note = {"class_names": list(names), "encoder": encoder.fingerprint, "templates": list(prompts)}
    adapter = _adapter(method, text, encoder, state, note, change_classes)
    run = _Run(images, names, encoder, adapter, min(top, len(names)), state, note)

    started = time.perf_counter()
    if output is None:
        run.write(_Screen(), batch)
    else:
        with replacing(output) as temporary:
            run.write(writer(output.suffix, temporary, images), batch)
    seconds = time.perf_counter() - started
    run.save()
    run.say_broken()
    done = run.done
    changed = (
        f", {run.changed} answered otherwise than by zero-shot" if method != "zero-shot" else ""
    )
    out.print(
        f"{done} images in {seconds:.1f} s, {done / max(seconds, 1e-9):.0f} images/s{changed}",
        highlight=False,
    )
    for path, what in ((output, "answers"), (state, "state")):
        if path is not None:
            out.print(f"{what} in {shown(path)}", soft_wrap=True)
    if run.interrupted:
        raise typer.Exit(130)


@dataclass(frozen=True, eq=False)
class ContentSet(ImageSet):
    """Images on disk whose bytes are read once, for the picture and for an id of its content."""

    ids: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, images: ImageSet) -> ContentSet:
        return cls(images.name, images.class_names, images.keys, root=images.root)

    def image(self, index: int) -> Image.Image:
        content = self.path(index).read_bytes()
        digest = hashlib.blake2b(content, digest_size=8).digest()
        self.ids[index] = int.from_bytes(digest, "little") >> 1  # 63 bits: a positive int64
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            return image


@dataclass
class _Run:
    """One pass over the images, with what it has found so far."""

    images: ContentSet
    names: tuple[str, ...]
    encoder: Encoder
    adapter: Adapter
    top: int
    state: Path | None
    note: dict[str, Any]
    done: int = 0
    changed: int = 0
    interrupted: bool = False
    broken: dict[int, str] = field(default_factory=dict)

    def write(self, answers: Writer, batch: int) -> None:
        """Hand all answers over; an interrupt ends the stream and keeps what is done."""
        saved = time.monotonic()
        # Threads of BLAS that wait for the next small product keep a core from the encoder.
        one_thread = threadpool_limits(1, user_api="blas")
        with one_thread, closing(answers), speed_bar() as progress, _interrupts() as asked_to_stop:
            task = progress.add_task("images", total=len(self.images))
            for part in encode(self.encoder, self.images, batch=batch):
                self.broken.update(part.broken)
                for row in self._rows(part.indices, part.features):
                    answers.add(row)
                progress.update(task, completed=part.stop)
                if time.monotonic() - saved > _SAVE_EVERY:
                    self.save()
                    saved = time.monotonic()
                if asked_to_stop.is_set():
                    self.interrupted = True
                    err.print("interrupted: what is done is kept")
                    break
            if not self.done:
                self.say_broken()
                raise ValueError("none of the images could be read")

    def _rows(self, indices: np.ndarray, features: np.ndarray) -> Iterator[Row]:
        if not len(indices):
            return
        adapter = self.adapter
        plain = softmax(features @ adapter.text_features.T * np.float32(adapter.scale))
        ids = np.array([self.images.ids[int(i)] for i in indices], np.int64)
        # The same picture may come twice in one batch, under two names.
        _, first, again = np.unique(ids, return_index=True, return_inverse=True)
        order = np.sort(first)
        position = np.searchsorted(order, first)[again]
        shares = softmax(adapter.adapt(features[order], ids=ids[order]))[position]
        best = np.argsort(-shares, axis=1, kind="stable")[:, : self.top]
        for row, index in enumerate(indices):
            guess = int(plain[row].argmax())
            self.done += 1
            self.changed += int(guess != best[row, 0])
            yield Row(
                int(index),
                self.images.keys[index],
                [(self.names[c], float(shares[row, c])) for c in best[row]],
                self.names[guess],
                float(plain[row, guess]),
            )

    def save(self) -> None:
        if self.state is not None:
            self.adapter.save(self.state, note=self.note)

    def say_broken(self) -> None:
        if self.broken:
            say_broken({self.images.keys[i]: why for i, why in self.broken.items()})


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, so that no batch is half learned; a second one ends at once."""
    asked = threading.Event()

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _check_method(name: str) -> None:
    """Only methods that learn from a stream of single images can run here."""
    needs = "gradients through the text tower" if name in list_tuners() else None
    if needs is None:
        cls = adapter_class(name)
        if issubclass(cls, FewShotAdapter) or cls.episodic or cls.per_prompt:
            needs = cls.needs
    if needs is not None:
        raise ValueError(
            f"--method {name} needs {needs}; here run those that learn from the stream: "
            "soba+, soba, ncm, tda, or zero-shot"
        )


def _class_names(classes: str | None, file: Path | None) -> tuple[str, ...]:
    if (classes is None) == (file is None):
        raise ValueError("say which classes there are: --classes cat,dog or --classes-file FILE")
    if file is not None:
        return read_class_names(file)
    names = tuple(name.strip() for name in (classes or "").split(",") if name.strip())
    if not names:
        raise ValueError("--classes names no class")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ValueError(f"--classes names a class twice: {', '.join(twice)}")
    return names


def _listed(paths: list[str]) -> ImageSet:
    """The images of all arguments in their order, by paths as one would type them here."""
    files: list[str] = []
    for path in paths:
        if Path(path).is_dir():
            found = from_folder(path, labelled=False)
        elif Path(path).suffix.lower() == ".csv":
            found = load_images(path)
        else:
            files.append(path)
            continue
        files += [str(found.path(i)) for i in range(len(found))]
    return load_images(files)


def _given_text(file: Path, classes: int, encoder: Encoder) -> np.ndarray:
    try:
        text = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{file}: not a .npy file ({error})") from error
    if not isinstance(text, np.ndarray) or text.dtype.kind != "f":
        raise ValueError(f"{file}: not an array of floating-point numbers")
    if text.shape != (classes, encoder.width):
        raise ValueError(
            f"{file}: expected {classes} classes x {encoder.width} dimensions, not {text.shape}"
        )
    return text


def _adapter(
    method: str,
    text: np.ndarray,
    encoder: Encoder,
    state: Path | None,
    note: dict[str, Any],
    change_classes: bool,
) -> Adapter:
    """A new adapter, or the one of an earlier run if it is of the same classes and encoder."""
    if state is None or not state.exists():
        return soba.adapter(method, text, scale=encoder.logit_scale)
    known = read_note(state)
    adapter = soba.load(state)
    if adapter.name != method:
        raise ValueError(f"{state}: learned by {adapter.name}; say --method {adapter.name}")
    if known.get("encoder") not in (None, note["encoder"]):
        raise ValueError(
            f"{state}: learned with encoder {known['encoder']}, not {note['encoder']}: "
            "features of different encoders do not mix"
        )
    fresh = soba.adapter(method, text, scale=encoder.logit_scale)
    # Another machine rounds its text features otherwise; other words are further away than that.
    if fresh.text_features.shape == adapter.text_features.shape and np.allclose(
        fresh.text_features, adapter.text_features, rtol=0.0, atol=1e-4
    ):
        return adapter
    if change_classes:
        return adapter.with_text(text)
    before, now = known.get("class_names"), note["class_names"]
    what = "with other prompts" if before == now else f"for the classes {_some(before)}"
    raise ValueError(
        f"{state}: learned {what}, where this run has {_some(now)}; --change-classes takes the "
        "samples over, another --state starts anew"
    )


def _some(names: list[str] | None) -> str:
    if not names:
        return "of another list"
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown}, ... ({len(names)})"


class _Screen:
    """The first answers as a table, and how many of each there are."""

    def __init__(self, most: int = 20) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._table = Table(box=None, pad_edge=False)
        for column in ("image", "answer", "", "zero-shot", ""):
            justify: Literal["left", "right"] = "left" if column else "right"
            self._table.add_column(column, justify=justify, overflow="fold")

    def add(self, row: Row) -> None:
        label, chance = row.top[0]
        self._counts[label] += 1
        if self._table.row_count == self._most:
            return
        plain = shown(row.zero_shot)
        self._table.add_row(
            shown(row.image),
            f"[bold]{shown(label)}[/]",
            f"{chance:.0%}",
            plain if row.zero_shot != label else f"[dim]{plain}[/]",
            f"{row.zero_shot_chance:.0%}",
        )

    def close(self) -> None:
        if not self._counts:
            return
        out.print(self._table)
        more = self._counts.total() - self._table.row_count
        if more:
            common = self._counts.most_common(12)
            counts = ", ".join(f"{shown(label)} {count}" for label, count in common)
            rest = "" if len(self._counts) <= 12 else f", and {len(self._counts) - 12} classes more"
            out.print(f"... and {more} more. {counts}{rest}", highlight=False)
