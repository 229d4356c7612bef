"""Images -> features: a file, made in a way that survives being killed at any moment, or memory.

Rows go to FILE.partial as they are made, flushed batch by batch. A second run cuts the last
unfinished batch off and goes on, and ends in the same bytes as an undisturbed one. Memory holds a
few batches, whatever the size of the set. Where a picture was replaced under its name, its batch is
encoded anew, in a begun file and in a finished one; views that were generated elsewhere are not
looked after.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from soba._files import alone
from soba.encode._begun import Begun, broken_of
from soba.encode._stamps import UNKNOWN, UNMADE, is_changed, is_gone, stamp
from soba.encode.encoder import Encoder
from soba.encode.features import Encoded, Images, batch_images, encode
from soba.encode.prompts import classifier, templates_fingerprint
from soba.encode.views import ViewMaker
from soba.feature_set import FeatureSet, read_note


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
    changed: list[int] = field(default_factory=list)  # filled in: replaced since an earlier run
    gone: list[int] = field(default_factory=list)  # filled in: no longer there, their rows kept

    def run(
        self,
        path: str | os.PathLike[str],
        step: Callable[[int, int], None] = lambda done, all: None,
    ) -> FeatureSet:
        """Write the feature file, or finish one that was begun; one process at a time.

        `step(done, total)` is called after each batch.
        """
        target = Path(path)
        if target.suffix != ".safetensors":
            raise ValueError(f"{target}: feature sets are saved as .safetensors")
        if not os.path.isdir(os.path.dirname(os.path.realpath(target))):
            raise FileNotFoundError(f"{target}: the folder does not exist")
        self._check_some()
        with alone(target):
            return self._run(target, step)

    def in_memory(self, step: Callable[[int, int], None] = lambda done, all: None) -> FeatureSet:
        """The same features without a file, for a set that is small and drawn anew at every run."""
        self._check_some()
        text, parts = self._text(), []
        for part in encode(self.encoder, self.images, batch=self.batch, views=self.views):
            self.broken.update(part.broken)
            if len(part.indices):
                parts.append(part)
            step(part.stop, len(self.images.keys))
        if not parts:
            raise self._nothing()
        features = np.concatenate([part.features for part in parts])
        return self._feature_set(features, text, np.concatenate([part.indices for part in parts]))

    @property
    def templates_fingerprint(self) -> str:
        """Of the prompts; the encoder has one of its own."""
        return templates_fingerprint(self.templates)

    def _job(self) -> dict[str, Any]:
        """What must be equal for a begun file to be continued."""
        return {
            # In one word, as files say it that were begun before there were two.
            "encoder": f"{self.encoder.fingerprint}-{self.templates_fingerprint}",
            "images": len(self.images.keys),
            "keys": _digest(self.images.keys),
            "labels": None if self.labels is None else _digest(np.asarray(self.labels).tolist()),
            "recipe": getattr(self.images, "recipe", None),
            "batch": self.batch,
            "views": None if self.views is None else self.views.policy(),
        }

    def _run(self, target: Path, step: Callable[[int, int], None]) -> FeatureSet:
        text = self._text()
        begun = self._begun(target)
        if target.exists() and (finished := self._already(target, begun)) is not None:
            return finished
        self._fill(begun, step)
        rows = begun.rows(begun.images)
        kept = np.array([i for i in range(begun.images) if i not in self.broken])
        if not len(kept):
            begun.remove()  # nothing in it is worth going on with
            raise self._nothing()
        features = self._feature_set(begun.without(rows, kept), text, kept)
        features.save(target, note=begun.progress() | _noted(rows["stamp"]))
        begun.remove()
        return FeatureSet.load(target)

    def _feature_set(self, rows: np.ndarray, text: np.ndarray, kept: np.ndarray) -> FeatureSet:
        """Rows of the images that could be read, `kept`, with all that is known of them."""
        return FeatureSet(
            image_features=rows,
            text_features=text,
            logit_scale=self.encoder.logit_scale,
            labels=None if self.labels is None else np.asarray(self.labels, np.int64)[kept],
            class_names=tuple(self.class_names),
            prompts=tuple(self.templates),
            encoder_fingerprint=self.encoder.fingerprint,
            templates_fingerprint=self.templates_fingerprint,
            keys=tuple(self.images.keys[i] for i in kept),
            view_policy=None if self.views is None else json.dumps(self.views.policy()),
        )

    def _check_some(self) -> None:
        if not self.images.keys:
            raise ValueError("there are no images to encode")

    def _nothing(self) -> ValueError:
        count, first = len(self.images.keys), next(iter(self.broken.values()))
        return ValueError(f"none of the {count} images could be read; the first: {first}")

    def _text(self) -> np.ndarray:
        return classifier(
            self.encoder.encode_texts,
            self.class_names,
            self.templates,
            allow_duplicates=self.allow_duplicates,
        )

    def _begun(self, target: Path) -> Begun:
        views = () if self.views is None else (self.views.count,)
        return Begun(
            target,
            self._job(),
            len(self.images.keys),
            batch_images(self.batch, self.views),
            (*views, self.encoder.width),
            self.broken,
        )

    def _already(self, target: Path, begun: Begun) -> FeatureSet | None:
        """A finished file, if it is what was asked for: running twice does no harm.

        None where pictures were replaced since: then its other rows are those of a begun file.
        """
        finished, note = FeatureSet.load(target), read_note(target)
        job, broken = note.get("job"), note.get("broken")
        # The batch size decides the last bits only: no reason to make a finished file anew.
        same = isinstance(job, dict) and job | {"batch": self.batch} == self._job()
        whole = isinstance(broken, dict) and len(finished) + len(broken) == begun.images
        if not same or not whole or finished.class_names != tuple(self.class_names):
            raise ValueError(
                f"{target}: exists, and holds other features; remove it or name another"
            )
        self.broken.update(broken_of(note))
        stamps = _stamps(note, begun.images)
        if not self._replaced(stamps):
            begun.remove()  # a run that was killed at its very end leaves its parts behind
            return finished
        if begun.earlier() is None:
            begun.reopen(finished.image_features, stamps)
        return None

    def _fill(self, begun: Begun, step: Callable[[int, int], None]) -> None:
        """Make all rows that are not there, and those of pictures that were replaced."""
        done, total = begun.go_on(), begun.images
        again = self._stale(begun, done)
        ready = done - sum(map(len, again))
        step(ready, total)
        for span in [*again, range(done, total)]:
            for part, stamps in self._encoded(span):
                begun.write(part, stamps)
                ready += part.stop - part.start
                step(ready, total)

    def _encoded(self, span: range) -> Iterator[tuple[Encoded, np.ndarray]]:
        if not span:
            return
        images = _Stamped(self.images, span.stop, self._path)
        for part in encode(
            self.encoder, images, batch=self.batch, start=span.start, views=self.views
        ):
            yield part, images.stamps[part.start : part.stop]

    def _stale(self, begun: Begun, done: int) -> list[range]:
        """The batches, among those that are done, that hold a picture that was replaced."""
        if not done:
            return []
        starts = {i // begun.batch * begun.batch for i in self._replaced(begun.rows(done)["stamp"])}
        spans = [range(start, min(start + begun.batch, done)) for start in sorted(starts)]
        if spans:
            begun.unmake(spans)
        return spans

    def _replaced(self, stamps: np.ndarray) -> list[int]:
        """The images whose files are not what they were when their rows were made."""
        path, before = self._path, stamps.tolist()
        if path is None:
            return []
        replaced = [i for i, was in enumerate(before) if is_changed(path(i), was)]
        self.changed[:] = sorted({*self.changed, *(i for i in replaced if before[i] != UNMADE)})
        self.gone[:] = [i for i, was in enumerate(before) if is_gone(path(i), was)]
        return replaced

    @property
    def _path(self) -> Callable[[int], Path] | None:
        """Where an image is on disk; None for images that are drawn."""
        drawn = getattr(self.images, "recipe", None) is not None
        return None if drawn else getattr(self.images, "path", None)


class _Stamped:
    """The first of the images; their files are stamped just before they are read."""

    def __init__(self, images: Images, count: int, path: Callable[[int], Path] | None) -> None:
        self.keys = images.keys[:count]
        self.stamps = np.full(count, UNKNOWN, np.uint64)
        self._images, self._path = images, path

    def image(self, index: int) -> Image.Image:
        if self._path is not None:
            self.stamps[index] = stamp(self._path(index))
        return self._images.image(index)


def _noted(stamps: np.ndarray) -> dict[str, str]:
    return {"stamps": stamps.astype(">u8").tobytes().hex()} if stamps.any() else {}


def _stamps(note: dict[str, Any], count: int) -> np.ndarray:
    """As `_noted` wrote them; of a file that was made before there were any, unknown."""
    try:
        stamps = np.frombuffer(bytes.fromhex(note["stamps"]), ">u8")
    except (KeyError, TypeError, ValueError):
        stamps = np.empty(0, np.uint64)
    return stamps if len(stamps) == count else np.full(count, UNKNOWN, np.uint64)


def _digest(values: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(list(values)).encode()).hexdigest()
