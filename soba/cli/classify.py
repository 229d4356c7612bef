"""`soba classify`: label images as a stream, adapting on the way."""

from __future__ import annotations

import hashlib
import io
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image
from rich.table import Table

import soba
from soba._files import replacing
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
    err,
    open_encoder,
    out,
    say_broken,
    speed_bar,
)
from soba.cli._rows import FORMATS, Row, writer
from soba.datasets import ImageSet, load_images
from soba.encode.encoder import Encoder
from soba.encode.pipeline import encode
from soba.encode.prompts import classifier, read_class_names, templates

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
    if output is not None and output.suffix not in FORMATS:
        raise ValueError(f"{output}: answers are written as {', '.join(FORMATS)}")
    for path in (output, state):
        if path is not None and not path.resolve().parent.is_dir():
            raise ValueError(f"{path}: the folder does not exist")
    images = ContentSet.of(load_images(paths[0] if len(paths) == 1 else _expanded(paths)))
    encoder = open_encoder(model, pretrained, device, precision, threads)
    prompts = templates(prompt or ("an icon of a {}." if encoder.name == "tiny" else "single"))
    if text_features is None:
        text = classifier(encoder.encode_texts, names, prompts)
    else:
        text = _given_text(text_features, len(names), encoder)
    note = {"class_names": list(names), "encoder": encoder.fingerprint, "templates": list(prompts)}
    adapter = _adapter(method, text, encoder, state, note, change_classes)
    run = _Run(images, names, encoder, adapter, text, min(top, len(names)), state, note)

    started = time.perf_counter()
    if output is None:
        rows = run.collect(batch)
        _show(rows, names)
    else:
        with replacing(output) as temporary:
            write = writer(output.suffix, temporary, names, images)
            for row in run.answers(batch):
                write.add(row)
            write.close()
    seconds = time.perf_counter() - started
    run.save()
    if run.broken:
        say_broken({images.keys[i]: why for i, why in run.broken.items()})
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
            out.print(f"{what} in {path}", soft_wrap=True)
    if run.interrupted:
        raise typer.Exit(130)
    if not done:
        raise ValueError("none of the images could be read")


@dataclass(frozen=True, eq=False)
class ContentSet(ImageSet):
    """Images on disk whose bytes are read once, for the picture and for an id of its content."""

    ids: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, images: ImageSet) -> ContentSet:
        return cls(images.name, images.class_names, images.keys, images.labels, root=images.root)

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
    text: np.ndarray
    top: int
    state: Path | None
    note: dict[str, Any]
    done: int = 0
    changed: int = 0
    interrupted: bool = False
    broken: dict[int, str] = field(default_factory=dict)

    def collect(self, batch: int) -> list[Row]:
        return list(self.answers(batch))

    def answers(self, batch: int) -> Any:
        """The rows of all images, in order; an interrupt ends the stream and keeps what is done."""
        scaled = self.text.T * np.float32(self.encoder.logit_scale)
        saved = time.monotonic()
        with speed_bar() as progress:
            task = progress.add_task("images", total=len(self.images))
            try:
                for part in encode(self.encoder, self.images, batch=batch):
                    self.broken.update(part.broken)
                    yield from self._rows(part.indices, part.features, scaled)
                    progress.update(task, completed=part.stop)
                    if self.state is not None and time.monotonic() - saved > _SAVE_EVERY:
                        self.save()
                        saved = time.monotonic()
            except KeyboardInterrupt:
                self.interrupted = True
                err.print("interrupted: what is done is kept")

    def _rows(self, indices: np.ndarray, features: np.ndarray, scaled: np.ndarray) -> Any:
        if not len(indices):
            return
        plain = softmax(features @ scaled)
        ids = np.array([self.images.ids[int(i)] for i in indices], np.int64)
        # The same picture may come twice in one batch, under two names.
        _, first, again = np.unique(ids, return_index=True, return_inverse=True)
        order = np.sort(first)
        position = np.searchsorted(order, first)[again]
        shares = self._probabilities(features[order], ids[order])[position]
        best = np.argsort(-shares, axis=1, kind="stable")[:, : self.top]
        for row, index in enumerate(indices):
            guess = int(plain[row].argmax())
            self.done += 1
            self.changed += guess != best[row, 0]
            yield Row(
                int(index),
                self.images.keys[index],
                [(self.names[c], float(shares[row, c])) for c in best[row]],
                self.names[guess],
                float(plain[row, guess]),
            )

    def _probabilities(self, features: np.ndarray, ids: np.ndarray) -> np.ndarray:
        logits = self.adapter.adapt(features, ids=ids)
        return softmax(logits)

    def save(self) -> None:
        if self.state is not None:
            self.adapter.save(self.state, note=self.note)


def _class_names(classes: str | None, file: Path | None) -> tuple[str, ...]:
    if (classes is None) == (file is None):
        raise ValueError("say which classes there are: --classes cat,dog or --classes-file FILE")
    if file is not None:
        return read_class_names(file)
    names = tuple(name.strip() for name in (classes or "").split(",") if name.strip())
    if not names:
        raise ValueError("--classes names no class")
    return names


def _expanded(paths: list[str]) -> list[str]:
    """Several arguments: the images of the folders among them, and the files as they are."""
    files: list[str] = []
    for path in paths:
        if Path(path).is_dir():
            found = load_images(path)
            files += [str(found.path(i)) for i in range(len(found))]
        else:
            files.append(path)
    return files


def _given_text(file: Path, classes: int, encoder: Encoder) -> np.ndarray:
    try:
        text = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{file}: not a .npy file ({error})") from error
    if not isinstance(text, np.ndarray) or text.shape != (classes, encoder.width):
        found = getattr(text, "shape", "an archive")
        raise ValueError(
            f"{file}: expected {classes} classes x {encoder.width} dimensions, not {found}"
        )
    lengths = np.linalg.norm(text, axis=1, keepdims=True)
    return np.asarray(text / lengths, np.float32)


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
    if np.array_equal(adapter.text_features, text):
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


def _show(rows: list[Row], names: tuple[str, ...], most: int = 20) -> None:
    """The first answers, and how many of each."""
    table = Table(box=None, pad_edge=False)
    for column in ("image", "answer", "", "zero-shot", ""):
        table.add_column(column, justify="right" if not column else "left", overflow="fold")
    for row in rows[:most]:
        label, chance = row.top[0]
        other = row.zero_shot if row.zero_shot != label else f"[dim]{row.zero_shot}[/]"
        table.add_row(
            row.image, f"[bold]{label}[/]", f"{chance:.0%}", other, f"{row.zero_shot_chance:.0%}"
        )
    out.print(table)
    if len(rows) > most:
        counts = Counter(row.top[0][0] for row in rows)
        shown = ", ".join(f"{label} {count}" for label, count in counts.most_common(12))
        rest = "" if len(counts) <= 12 else f", and {len(counts) - 12} classes more"
        out.print(f"... and {len(rows) - most} more. {shown}{rest}", highlight=False)
