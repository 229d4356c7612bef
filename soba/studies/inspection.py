"""What a saved state knows: the evidence for each class, and what it answers otherwise than CLIP.

Methods with queues keep the samples that CLIP is surest of in each class; SOBA+ keeps a uniform
sample of its stream. The second kind tells how often answers change; the first does not, since
where CLIP is sure little changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from soba.adapt._arrays import softmax
from soba.adapt.base import Adapter
from soba.adapt.soba_plus import SOBAPlus
from soba.classifier import Classifier
from soba.encode.images import list_images
from soba.encode.pictures import FilePicture, content_id

PER_CLASS = 8  # samples that a class is shown by


@dataclass(frozen=True)
class ClassEvidence:
    """What is known of one class."""

    name: str
    queued: tuple[int, ...]  # samples in each queue
    mean_entropy: float | None  # of the queued samples under CLIP, in nats
    mass: float | None  # samples behind the class, shared out by probability; of SOBA+
    zero_shot: int  # drawn samples that CLIP alone calls so
    adapted: int  # drawn samples that are called so now
    best: tuple[int, ...]  # rows of samples: the surest of its queue, or those it explains best


@dataclass(frozen=True)
class Samples:
    """The samples that are kept, each once, with what CLIP alone and the state say of them."""

    ids: np.ndarray  # (m,)
    features: np.ndarray  # (m, d)
    queued: np.ndarray  # (m,) bool
    drawn: np.ndarray  # (m,) bool: in the uniform sample
    entropies: np.ndarray  # (m,) of queued ones; nan elsewhere
    zero_shot: np.ndarray  # (m,) class indices
    adapted: np.ndarray  # (m,)
    confidence: np.ndarray  # (m,) of the adapted answer

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def changed(self) -> np.ndarray:
        changed: np.ndarray = self.zero_shot != self.adapted
        return changed


@dataclass(frozen=True)
class Change:
    """So many samples that CLIP calls one class are called another."""

    before: int
    after: int
    count: int


@dataclass(frozen=True)
class Inspection:
    """All of it."""

    method: str
    n_seen: int
    id_space: str | None
    names: tuple[str, ...]
    queues: tuple[str, ...]
    capacity: int | None
    classes: tuple[ClassEvidence, ...]
    samples: Samples
    changes: tuple[Change, ...]  # the most frequent first
    expected: tuple[float, float] | None  # accuracies of CLIP alone and adapted, without labels

    def changed_of(self, some: np.ndarray) -> tuple[int, int]:
        """How many of these samples are answered otherwise than by CLIP, and of how many."""
        return int((self.samples.changed & some).sum()), int(some.sum())


def inspect(saved: Classifier | Adapter, names: Sequence[str] | None = None) -> Inspection:
    """What `soba.load` gave, looked into; changes nothing and opens no encoder.

    `names` are for adapters, which do not know what their classes are called.
    """
    adapter = saved.adapter if isinstance(saved, Classifier) else saved
    arrays: dict[str, np.ndarray] = adapter.state()["arrays"]
    if isinstance(saved, Classifier):
        names = saved.names
    elif names is None:
        names = tuple(f"class {index}" for index in range(adapter.n_classes))
    if len(names) != adapter.n_classes:
        raise ValueError(f"{len(names)} class names for a state of {adapter.n_classes} classes")
    queues = tuple(key[: -len(".entropies")] for key in arrays if key.endswith(".entropies"))
    samples = _samples(adapter, arrays, queues)
    if isinstance(adapter, SOBAPlus):
        best = _found(samples, adapter.examples(PER_CLASS))
    else:
        best = _surest(samples, len(names))
    estimate = getattr(adapter, "expected_accuracy", lambda: None)()
    return Inspection(
        method=adapter.name,
        n_seen=int(getattr(adapter, "n_seen", 0)),
        id_space=getattr(adapter, "id_space", None),
        names=tuple(names),
        queues=queues,
        capacity=getattr(adapter, "capacity", None),
        classes=_classes(names, arrays, queues, samples, best),
        samples=samples,
        changes=_changes(samples),
        expected=None if estimate is None else (estimate.zero_shot, estimate.adapted),
    )


def find_images(ids: Collection[int], source: Any) -> dict[int, Path]:
    """Id -> file, of the samples that images in a folder (or pattern, or list) are.

    States know an image by its content, so every file is read, none is decoded, and a file that
    was renamed is found. What cannot be read is not what was learned from.
    """
    wanted = set(ids)
    places: dict[int, Path] = {}
    for picture in list_images(source):
        if not isinstance(picture, FilePicture):
            continue
        path = Path(picture.name)
        try:
            id_ = content_id(path.read_bytes())
        except OSError:
            continue
        if id_ in wanted:
            places.setdefault(id_, path)
    return places


def _samples(adapter: Adapter, arrays: dict[str, np.ndarray], queues: Sequence[str]) -> Samples:
    drawn = [k[: -len(".ids")] for k in arrays if k.endswith(".ids") and k[:-4] not in queues]
    parts = [*queues, *drawn]
    none = np.empty(0, np.int64)
    ids = np.concatenate([none, *(arrays[f"{part}.ids"] for part in parts)])
    rows = [np.empty((0, adapter.dim), np.float32), *(arrays[f"{p}.features"] for p in parts)]
    unique, first, place = np.unique(ids, return_index=True, return_inverse=True)
    sizes = [len(arrays[f"{part}.ids"]) for part in parts]
    of_queue = np.repeat([part in queues for part in parts], sizes).astype(bool)
    queued, in_sample = (np.zeros(len(unique), bool) for _ in range(2))
    queued[place[of_queue]] = True
    in_sample[place[~of_queue]] = True
    entropies = np.full(len(unique), np.nan)
    if queues:
        entropies[place[of_queue]] = np.concatenate([arrays[f"{q}.entropies"] for q in queues])
    features = np.concatenate(rows)[first]
    logits = np.asarray(adapter.logits(features)) if len(features) else np.empty((0, 1))
    shares = softmax(np, logits) if len(features) else logits
    text = adapter.text_features
    return Samples(
        unique,
        features,
        queued,
        in_sample,
        entropies,
        (features @ text.T).argmax(axis=1),
        shares.argmax(axis=1),
        shares.max(axis=1) if len(features) else np.empty(0),
    )


def _surest(samples: Samples, classes: int) -> list[tuple[int, ...]]:
    """Of each class the rows of queued samples that CLIP is surest of, by its own labels."""
    order = np.argsort(samples.entropies, kind="stable")
    order = order[samples.queued[order]]
    labels = samples.zero_shot[order]
    return [tuple(order[labels == label][:PER_CLASS].tolist()) for label in range(classes)]


def _found(samples: Samples, examples: Sequence[Collection[int]]) -> list[tuple[int, ...]]:
    """The rows of the samples that an adapter names for each class."""
    return [tuple(np.searchsorted(samples.ids, list(each)).tolist()) for each in examples]


def _classes(
    names: Sequence[str],
    arrays: dict[str, np.ndarray],
    queues: Sequence[str],
    samples: Samples,
    best: Sequence[tuple[int, ...]],
) -> tuple[ClassEvidence, ...]:
    count = len(names)
    fill = [np.bincount(arrays[f"{queue}.labels"], minlength=count) for queue in queues]
    sums = np.zeros(count)
    for queue in queues:
        sums += np.bincount(arrays[f"{queue}.labels"], arrays[f"{queue}.entropies"], count)
    queued = np.sum(fill, axis=0) if fill else np.zeros(count, int)
    mass = arrays.get("statistics.mass")
    plain, now = (
        np.bincount(said[samples.drawn], minlength=count)
        for said in (samples.zero_shot, samples.adapted)
    )
    return tuple(
        ClassEvidence(
            name,
            tuple(int(each[index]) for each in fill),
            float(sums[index] / queued[index]) if queued[index] else None,
            None if mass is None else float(mass[index]),
            int(plain[index]),
            int(now[index]),
            best[index],
        )
        for index, name in enumerate(names)
    )


def _changes(samples: Samples) -> tuple[Change, ...]:
    rows = samples.changed
    pairs = zip(samples.zero_shot[rows].tolist(), samples.adapted[rows].tolist(), strict=True)
    counted = sorted(Counter(pairs).items(), key=lambda item: (-item[1], item[0]))
    return tuple(Change(before, after, count) for (before, after), count in counted)
