"""Features of image sets, made once: a file's name says what went into it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from soba._files import alone, parse_json, replacing
from soba.datasets import ImageSet
from soba.datasets.icons import IconSet
from soba.encode.encoder import Encoder
from soba.encode.extract import Extraction
from soba.encode.features import encode
from soba.encode.prompts import classifier
from soba.encode.views import Views
from soba.feature_set import FeatureSet, read_note

_SECONDS_EVERY = 2.0  # how often the time spent is written down


@dataclass(frozen=True)
class FeatureFolder:
    """A folder of feature files of one encoder.

    A file carries a digest of encoder, prompts, images, labels and views in its name: what is
    there can be used, what is asked for with other settings gets another file. Beside it, in a
    .json file, are the seconds it took, over all runs that worked on it.

    Parameters
    ----------
    templates
        In place of the ones each set is usually scored with.
    views, augmix
        As `soba.encode.views.Views` makes them; one view is the image alone.
    broken
        Filled in with the images that could not be read: (set, key) -> why.
    """

    folder: Path
    encoder: Encoder
    templates: tuple[str, ...] | None = None
    views: int = 1
    augmix: bool = False
    batch: int = 64
    broken: dict[tuple[str, str], str] = field(default_factory=dict)

    def path(self, images: ImageSet) -> Path:
        """Where the features of a set are, or will be."""
        job = self._job(images)
        labels = None if images.labels is None else np.asarray(images.labels, "<i8")
        parts: dict[str, Any] = {
            "fingerprint": f"{self.encoder.fingerprint}-{job.templates_fingerprint}",
            "class_names": list(images.class_names),
            "keys": hashlib.sha256(json.dumps(images.keys).encode()).hexdigest(),
            "labels": None if labels is None else hashlib.sha256(labels.tobytes()).hexdigest(),
            "root": None if images.root is None else str(images.root.resolve()),
            "views": None if job.views is None else job.views.policy(),
        }
        if isinstance(images, IconSet):
            parts["drawn"] = [images.recipe, images.look, images.seed, images.size]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        views = f"-{self.views}views" if self.views > 1 else ""
        return self.folder / f"{images.name}{views}-{digest[:12]}.safetensors"

    def get(
        self, images: ImageSet, step: Callable[[int], None] = lambda done: None
    ) -> tuple[FeatureSet, float]:
        """The features of a set, and the seconds their extraction took in all.

        `step` is called with the number of images encoded since the last call. What another
        process is making is waited for.
        """
        target = self.path(images)
        if not target.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            # The lock is the note's: the extraction itself locks the features.
            with alone(_note_of(target), wait=True):
                if not target.exists():  # nobody else has made it meanwhile
                    return self._make(images, target, step)
        lacking = self.left_out(images)
        self.broken.update({(images.name, key): why for key, why in lacking.items()})
        return FeatureSet.load(target), seconds_of(target) or 0.0

    def _make(
        self, images: ImageSet, target: Path, step: Callable[[int], None]
    ) -> tuple[FeatureSet, float]:
        if _begun_batch(target) not in (None, self.batch):
            _remove_begun(target)
        job = self._job(images)
        before, start = seconds_of(target) or 0.0, time.perf_counter()
        counted, written = 0, 0.0

        def stepped(done: int, total: int) -> None:
            nonlocal counted, written
            spent = time.perf_counter() - start
            if spent - written > _SECONDS_EVERY:
                _note_seconds(target, before + spent)
                written = spent
            step(done - counted)
            counted = done

        features = job.run(target, stepped)
        seconds = round(before + time.perf_counter() - start, 3)
        _note_seconds(target, seconds)
        self.broken.update({(images.name, images.keys[i]): why for i, why in job.broken.items()})
        return features, seconds

    def left_out(self, images: ImageSet) -> dict[str, str]:
        """The images that could not be read when the file was made: key -> why."""
        target = self.path(images)
        broken = read_note(target).get("broken") if target.exists() else None
        if not isinstance(broken, dict):
            return {}
        return {images.keys[int(index)]: str(why) for index, why in broken.items()}

    def readable_now(self, images: ImageSet) -> bool:
        """Whether one of the images that were left out could be encoded now."""
        lacking = self.left_out(images)
        rows = [i for i, key in enumerate(images.keys) if key in lacking]
        retried = encode(self.encoder, _Some(images, rows), views=self._views())
        return any(len(part.indices) for part in retried)

    def discard(self, images: ImageSet) -> None:
        """Remove the file of a set, for it to be made anew."""
        target = self.path(images)
        target.unlink(missing_ok=True)
        _note_of(target).unlink(missing_ok=True)

    def prompt_features(self, images: ImageSet) -> np.ndarray:
        """(P, C, d): the text features of each prompt by itself."""
        return np.stack(
            [
                classifier(
                    self.encoder.encode_texts,
                    images.class_names,
                    [template],
                    allow_duplicates=True,
                )
                for template in self.templates or images.templates
            ]
        )

    def _views(self) -> Views | None:
        if self.views == 1:
            return None
        return Views(self.views, self.augmix, self.encoder.preprocess)

    def _job(self, images: ImageSet) -> Extraction:
        return Extraction(
            self.encoder,
            images,
            images.class_names,
            self.templates or images.templates,
            labels=images.labels,
            batch=self.batch,
            views=self._views(),
            allow_duplicates=True,  # ImageNet says missile and sunglasses twice
        )


class _Some:
    """A few of the images of a set."""

    def __init__(self, images: ImageSet, rows: list[int]) -> None:
        self.keys = tuple(images.keys[index] for index in rows)
        self._images, self._chosen = images, rows

    def image(self, index: int) -> Image.Image:
        return self._images.image(self._chosen[index])


def seconds_of(target: Path) -> float | None:
    """The seconds a feature file took to make, if that was noted beside it, legibly."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return float(parse_json(_note_of(target).read_bytes())["encode_seconds"])
    return None


def _note_seconds(target: Path, seconds: float) -> None:
    with replacing(_note_of(target)) as temporary:
        temporary.write_text(json.dumps({"encode_seconds": seconds}))


def _note_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.seconds.json")


def _begun_batch(target: Path) -> int | None:
    """The batch size of an extraction that was begun and not finished."""
    journal = target.with_name(f"{target.name}.partial.json")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(parse_json(journal.read_bytes())["job"]["batch"])
    return None


def _remove_begun(target: Path) -> None:
    """Rows of another batch size differ in their last bits: a file is of one size throughout."""
    for ending in ("partial", "partial.json", "partial.kept"):
        target.with_name(f"{target.name}.{ending}").unlink(missing_ok=True)
