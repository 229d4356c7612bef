"""Images -> a feature file, in a way that survives being killed at any moment.

Rows go to FILE.partial as they are made, float16 and flushed batch by batch; FILE.partial.json
says what job they belong to. A second run cuts the last unfinished batch off and goes on, and ends
in the same bytes as an undisturbed one. Memory holds a few batches, whatever the size of the set.
Images are known by their keys: one that is replaced under its name is not noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from soba._files import replacing
from soba.encode.encoder import Encoder
from soba.encode.pipeline import Images, batch_images, encode
from soba.encode.prompts import classifier
from soba.encode.store import FeatureSet, read_note
from soba.encode.views import ViewMaker

_BLOCK = 1 << 20  # bytes moved at a time when rows of broken images are taken out


@dataclass(frozen=True)
class Extraction:
    """What is to be extracted, and with what.

    Parameters
    ----------
    encoder
        Of images and of the prompts.
    images
        Keys, and how to open each.
    class_names, templates
        The text classifier that the file will carry.
    labels
        (n,) of the images, where known.
    batch
        Images (or views) per run of the encoder. Part of the job: it decides the last bits.
    views
        Views of each image; none: the image alone.
    """

    encoder: Encoder
    images: Images
    class_names: Sequence[str]
    templates: Sequence[str]
    labels: np.ndarray | None = None
    batch: int = 64
    views: ViewMaker | None = None
    allow_duplicates: bool = False
    broken: dict[int, str] = field(default_factory=dict)  # filled in as images are read

    def run(
        self,
        path: str | os.PathLike[str],
        step: Callable[[int, int], None] = lambda done, all: None,
    ) -> FeatureSet:
        """Write the feature file, or finish one that was begun.

        `step(done, total)` is called after each batch.
        """
        target = Path(path)
        if target.suffix != ".safetensors":
            raise ValueError(f"{target}: feature sets are saved as .safetensors")
        if not target.resolve().parent.is_dir():
            raise FileNotFoundError(f"{target}: the folder does not exist")
        if not self.images.keys:
            raise ValueError("there are no images to encode")
        text = classifier(
            self.encoder.encode_texts,
            self.class_names,
            self.templates,
            allow_duplicates=self.allow_duplicates,
        )
        if target.exists():
            return self._already(target)
        rows = self._rows(target, step)
        kept = np.array([i for i in range(len(self.images.keys)) if i not in self.broken])
        if not len(kept):
            _clean(target)  # nothing in it is worth going on with
            first = next(iter(self.broken.values()))
            raise ValueError(f"none of the {len(rows)} images could be read; the first: {first}")
        compacted = _without(target, rows, kept)
        made = FeatureSet(
            image_features=compacted,
            text_features=text,
            logit_scale=self.encoder.logit_scale,
            labels=None if self.labels is None else np.asarray(self.labels, np.int64)[kept],
            class_names=tuple(self.class_names),
            prompts=tuple(self.templates),
            fingerprint=self.fingerprint,
            keys=tuple(self.images.keys[i] for i in kept),
            view_policy=None if self.views is None else json.dumps(self.views.policy()),
        )
        made.save(target, note=self._progress())
        _clean(target)
        return FeatureSet.load(target)

    @property
    def fingerprint(self) -> str:
        """Of encoder and templates: features with different ones do not mix."""
        return f"{self.encoder.fingerprint}-{_digest(self.templates)[:8]}"

    def _job(self) -> dict[str, Any]:
        """What must be equal for a begun file to be continued."""
        return {
            "encoder": self.fingerprint,
            "images": len(self.images.keys),
            "keys": _digest(self.images.keys),
            "labels": None if self.labels is None else _digest(np.asarray(self.labels).tolist()),
            "recipe": getattr(self.images, "recipe", None),
            "batch": self.batch,
            "views": None if self.views is None else self.views.policy(),
        }

    def _already(self, target: Path) -> FeatureSet:
        """A finished file, if it is what was asked for: running twice does no harm."""
        found, note = FeatureSet.load(target), read_note(target)
        job = note.get("job")
        # The batch size decides the last bits only: no reason to make a finished file anew.
        same = isinstance(job, dict) and job | {"batch": self.batch} == self._job()
        if not same or found.class_names != tuple(self.class_names):
            raise ValueError(
                f"{target}: exists, and holds other features; remove it or name another"
            )
        self.broken.update(_broken(note))
        _clean(target)  # a run that was killed at its very end leaves its parts behind
        return found

    def _rows(self, target: Path, step: Callable[[int, int], None]) -> np.ndarray:
        """All rows, of broken images too, as a memory map of the partial file."""
        partial, journal, job = _partial(target), _journal(target), self._job()
        if partial.exists() and journal.exists():
            saved_job, broken = _read(journal)
            if saved_job != job:
                raise ValueError(
                    f"{partial}: begun with another encoder, image list, labels, batch size or "
                    "views; finish that run first, or remove the file to start over"
                )
        else:
            broken = {}
            partial.unlink(missing_ok=True)
            self._write(journal)
        views = () if self.views is None else (self.views.count,)
        shape = (len(self.images.keys), *views, self.encoder.width)
        row = 2 * int(np.prod(shape[1:]))  # bytes
        images = batch_images(self.batch, self.views)
        with partial.open("ab") as file:
            done = file.tell() // (row * images) * images
            if file.tell() == row * shape[0]:
                done = shape[0]
            if done > shape[0]:
                raise ValueError(f"{partial}: longer than it can be; remove it to start over")
            file.truncate(done * row)
            self.broken.update({i: why for i, why in broken.items() if i < done})
            step(done, shape[0])
            if done < shape[0]:
                for part in encode(
                    self.encoder, self.images, batch=self.batch, start=done, views=self.views
                ):
                    if part.broken:  # known before their rows are counted as done
                        self.broken.update(part.broken)
                        self._write(journal)
                    block = np.full((part.stop - part.start, *shape[1:]), np.nan, np.float16)
                    block[part.indices - part.start] = part.features
                    file.write(block.astype("<f2").tobytes())
                    file.flush()
                    os.fsync(file.fileno())
                    step(part.stop, shape[0])
        return np.memmap(partial, "<f2", "r", shape=shape)

    def _progress(self) -> dict[str, Any]:
        return {"job": self._job(), "broken": {str(i): why for i, why in self.broken.items()}}

    def _write(self, journal: Path) -> None:
        with replacing(journal) as temporary:
            temporary.write_text(json.dumps(self._progress()))


def _digest(values: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(list(values)).encode()).hexdigest()


def _without(target: Path, rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The kept rows, still on disk."""
    if len(kept) == len(rows):
        return rows
    count = max(1, _BLOCK // rows[0].nbytes)
    with _compacted(target).open("wb") as file:
        for start in range(0, len(kept), count):
            file.write(np.asarray(rows[kept[start : start + count]]).tobytes())
    return np.memmap(_compacted(target), "<f2", "r", shape=(len(kept), *rows.shape[1:]))


def _read(journal: Path) -> tuple[dict[str, Any], dict[int, str]]:
    """The job, and the broken images so far."""
    try:
        content = json.loads(journal.read_text())
        return content["job"], _broken(content)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{journal}: damaged; remove it to start over ({error})") from error


def _broken(content: dict[str, Any]) -> dict[int, str]:
    return {int(index): str(why) for index, why in content["broken"].items()}


def _clean(target: Path) -> None:
    for leftover in (_partial(target), _journal(target), _compacted(target)):
        leftover.unlink(missing_ok=True)


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


def _journal(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial.json")


def _compacted(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial.kept")
