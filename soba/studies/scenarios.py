"""Streams on which adapters break, made from any labelled feature set, seeded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from soba.bench.orders import sorted_by_class
from soba.feature_set import FeatureSet


@dataclass(frozen=True)
class Scenario:
    """A stream in its order, with the text to score it with.

    `labels` are -1 for images that belong to none of the classes: they are streamed and not
    scored.
    """

    features: np.ndarray  # (n, d) unit rows
    labels: np.ndarray  # (n,)
    text_features: np.ndarray  # (C, d)

    @property
    def scored(self) -> np.ndarray:
        return self.labels >= 0


def build(name: str, features: FeatureSet, seed: int) -> Scenario:
    """One scenario by name, in the order of a seed."""
    if features.labels is None:
        raise ValueError(f"{features.source}: has no labels, scenarios cannot be built")
    if features.image_features.ndim != 2:
        raise ValueError(f"{features.source}: scenarios need (n, d) features, not views")
    if len(features) < 2:
        raise ValueError(f"{features.source}: holds too few images")
    images = _unit(np.asarray(features.image_features, np.float32))
    text = np.asarray(features.text_features, np.float32)
    labels = np.asarray(features.labels, np.int64)
    return SCENARIOS[name](images, labels, text, np.random.default_rng(seed))


def _per_class(most: int | None) -> Callable[..., Scenario]:
    def make(
        images: np.ndarray, labels: np.ndarray, text: np.ndarray, rng: np.random.Generator
    ) -> Scenario:
        order = rng.permutation(len(labels))
        if most is not None:
            order = order[_rank_within(labels[order]) < most]
        return Scenario(images[order], labels[order], text)

    return make


def _quarter(
    images: np.ndarray, labels: np.ndarray, text: np.ndarray, rng: np.random.Generator
) -> Scenario:
    have = np.unique(labels)  # a class without images cannot be present
    present = rng.permutation(have)[: max(1, round(len(have) / 4))]
    order = rng.permutation(len(labels))
    order = order[np.isin(labels[order], present)]
    return Scenario(images[order], labels[order], text)


def _zipf(
    images: np.ndarray, labels: np.ndarray, text: np.ndarray, rng: np.random.Generator
) -> Scenario:
    """The first class in a random ranking keeps all it has, the r-th the r-th part of that."""
    counts = np.bincount(labels, minlength=len(text))
    rank = np.full(len(text), len(text))
    rank[counts > 0] = rng.permutation(int((counts > 0).sum())) + 1
    most = counts[rank.argmin()]
    quota = np.maximum(1, np.round(most / rank)).astype(int)
    order = rng.permutation(len(labels))
    order = order[_rank_within(labels[order]) < quota[labels[order]]]
    return Scenario(images[order], labels[order], text)


def _sorted(
    images: np.ndarray, labels: np.ndarray, text: np.ndarray, rng: np.random.Generator
) -> Scenario:
    order = sorted_by_class(labels, len(text), rng)
    return Scenario(images[order], labels[order], text)


def _shift(
    images: np.ndarray, labels: np.ndarray, text: np.ndarray, rng: np.random.Generator
) -> Scenario:
    """From the middle of the stream on, half of the mean image is taken away."""
    order = rng.permutation(len(labels))
    stream = images[order]
    middle = len(stream) // 2
    stream[middle:] = _unit(stream[middle:] - 0.5 * images.mean(axis=0))
    return Scenario(stream, labels[order], text)


def _unrelated(share: float) -> Callable[..., Scenario]:
    def make(
        images: np.ndarray, labels: np.ndarray, text: np.ndarray, rng: np.random.Generator
    ) -> Scenario:
        turn = rng.permutation(np.unique(labels))
        lost = np.cumsum(np.bincount(labels, minlength=len(text))[turn])
        gone = turn[: int(np.searchsorted(lost, share * len(labels))) + 1][: len(text) - 1]
        new_label = np.full(len(text), -1)
        kept = np.setdiff1d(np.arange(len(text)), gone)
        new_label[kept] = np.arange(len(kept))
        order = rng.permutation(len(labels))
        return Scenario(images[order], new_label[labels[order]], text[kept])

    return make


def _duplicates(
    images: np.ndarray, labels: np.ndarray, text: np.ndarray, rng: np.random.Generator
) -> Scenario:
    """A fifth of the images come five times more, with noise of 0.02 in every coordinate."""
    rows = rng.permutation(len(labels))[: len(labels) // 5]
    copies = np.repeat(rows, 5)
    noisy = images[copies] + 0.02 * rng.normal(size=(len(copies), images.shape[1]))
    stream = np.concatenate([images, _unit(noisy).astype(np.float32)])
    order = rng.permutation(len(stream))
    return Scenario(stream[order], np.concatenate([labels, labels[copies]])[order], text)


def _wrong_text(
    images: np.ndarray, labels: np.ndarray, text: np.ndarray, rng: np.random.Generator
) -> Scenario:
    """The text of a fifth of the classes, two at least, goes round among them."""
    classes = rng.permutation(len(text))[: max(2, round(len(text) / 5))]
    text = text.copy()
    text[classes] = text[np.roll(classes, 1)]
    order = rng.permutation(len(labels))
    return Scenario(images[order], labels[order], text)


SCENARIOS: dict[str, Callable[..., Scenario]] = {
    "2 per class": _per_class(2),
    "4 per class": _per_class(4),
    "8 per class": _per_class(8),
    "16 per class": _per_class(16),
    "all": _per_class(None),
    "quarter of classes": _quarter,
    "zipf": _zipf,
    "sorted by class": _sorted,
    "shift": _shift,
    "10% unrelated": _unrelated(0.1),
    "30% unrelated": _unrelated(0.3),
    "near-duplicates": _duplicates,
    "wrong text": _wrong_text,
}


def _rank_within(labels: np.ndarray) -> np.ndarray:
    """For each position, how many before it have the same label."""
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels)
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank


def _unit(rows: np.ndarray) -> np.ndarray:
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit
