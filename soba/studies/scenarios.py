"""Hard streams and hard sets, made from any labelled feature set, seeded.

Regimes change which images come and when; what else can go wrong changes the images or the text.
`STREAMS` are for methods that learn from a stream, `WHOLE_SETS` for those that see a set at once:
there the order is nothing, and what is hard are sets of few of the classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from soba.feature_set import FeatureSet
from soba.studies import regimes


@dataclass(frozen=True)
class Scenario:
    """A stream in its order, with the text to score it with.

    `labels` are -1 for images that belong to none of the classes: they are streamed and not
    scored. `sets` are the sizes of the sets that it is cut into, for methods that see a set at
    once; None where it is one set.
    """

    features: np.ndarray  # (n, d) unit rows
    labels: np.ndarray  # (n,)
    text_features: np.ndarray  # (C, d)
    sets: tuple[int, ...] | None = None

    @property
    def scored(self) -> np.ndarray:
        return self.labels >= 0


Make = Callable[[np.ndarray, np.ndarray, np.ndarray, np.random.Generator], Scenario]


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
    make = (STREAMS | WHOLE_SETS)[RENAMED.get(name, name)]
    return make(images, labels, text, np.random.default_rng(seed))


def names_of(words: str | None, transductive: bool = False) -> list[str]:
    """The scenarios that comma-separated words name: each by its name, or how names begin.

    Examples
    --------
    >>> names_of("quarter,bursts,4 per class")
    ['quarter', 'bursts 0.1', 'bursts 0.01', 'few']
    """
    known = list(WHOLE_SETS if transductive else STREAMS)
    if words is None:
        return known
    chosen: list[str] = []
    for word in filter(None, (word.strip() for word in words.split(","))):
        name = RENAMED.get(word, word)
        begun = [each for each in known if each.lower().startswith(name.lower())]
        if not begun:
            raise ValueError(f"no scenario {word!r}; there are: {', '.join(known)}")
        chosen += [name] if name in known else begun
    if not chosen:
        raise ValueError(f"no scenario is named; there are: {', '.join(known)}")
    return list(dict.fromkeys(chosen))


def _regime(arrange: Callable[..., np.ndarray], **settings: Any) -> Make:
    def make(
        images: np.ndarray, labels: np.ndarray, text: np.ndarray, rng: np.random.Generator
    ) -> Scenario:
        order = arrange(labels, len(text), rng, **settings)
        return Scenario(images[order], labels[order], text)

    return make


def _sets(draw: Callable[..., list[np.ndarray]], **settings: Any) -> Make:
    def make(
        images: np.ndarray, labels: np.ndarray, text: np.ndarray, rng: np.random.Generator
    ) -> Scenario:
        sets = draw(labels, len(text), rng, **settings)
        rows = np.concatenate(sets)
        return Scenario(images[rows], labels[rows], text, tuple(map(len, sets)))

    return make


def _stata_stream(
    labels: np.ndarray, classes: int, rng: np.random.Generator, concentration: float
) -> np.ndarray:
    return regimes.bursts(labels, classes, rng, concentration, slots=len(np.unique(labels)))


def _shift(
    images: np.ndarray, labels: np.ndarray, text: np.ndarray, rng: np.random.Generator
) -> Scenario:
    """From the middle of the stream on, half of the mean image is taken away."""
    order = rng.permutation(len(labels))
    stream = images[order]
    middle = len(stream) // 2
    stream[middle:] = _unit(stream[middle:] - 0.5 * images.mean(axis=0))
    return Scenario(stream, labels[order], text)


def _unrelated(
    images: np.ndarray,
    labels: np.ndarray,
    text: np.ndarray,
    rng: np.random.Generator,
    share: float,
) -> Scenario:
    turn = rng.permutation(np.unique(labels))
    lost = np.cumsum(np.bincount(labels, minlength=len(text))[turn])
    gone = turn[: int(np.searchsorted(lost, share * len(labels))) + 1][: len(text) - 1]
    new_label = np.full(len(text), -1)
    kept = np.setdiff1d(np.arange(len(text)), gone)
    new_label[kept] = np.arange(len(kept))
    order = rng.permutation(len(labels))
    return Scenario(images[order], new_label[labels[order]], text[kept])


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


_CONTENT: dict[str, Make] = {  # regimes in which other images come, in any order
    "shuffled": _regime(regimes.shuffled),
    "quarter": _regime(regimes.quarter),
    "few": _regime(regimes.few),
    "zipf": _regime(regimes.zipf),
}
_ORDER: dict[str, Make] = {  # all images, in an order of their own
    "sorted": _regime(regimes.by_class),
    "bursts 0.1": _regime(regimes.bursts, concentration=0.1),
    "bursts 0.01": _regime(regimes.bursts, concentration=0.01),
}
_TROUBLE: dict[str, Make] = {
    "2 per class": _regime(regimes.few, most=2),
    "16 per class": _regime(regimes.few, most=16),
    "shift": _shift,
    "30% unrelated": partial(_unrelated, share=0.3),
    "near-duplicates": _duplicates,
    "wrong text": _wrong_text,
}
STREAMS: dict[str, Make] = (
    _CONTENT
    | _ORDER
    | _TROUBLE
    | {f"StatA {c:g}": _regime(_stata_stream, concentration=c) for c in regimes.STATA_STREAMS}
)
WHOLE_SETS: dict[str, Make] = (
    _CONTENT
    | {"batches of 4": _sets(regimes.batches)}
    | {name: make for name, make in _TROUBLE.items() if name != "shift"}
    | {
        f"StatA {least}-{most} of {size}": _sets(
            regimes.stata_batches, size=size, least=least, most=most
        )
        for size, least, most in regimes.STATA_BATCHES
    }
)
# What some were called before; a name that is not here is what it always was.
RENAMED = {
    "all": "shuffled",
    "quarter of classes": "quarter",
    "sorted by class": "sorted",
    "4 per class": "few",
}


def _unit(rows: np.ndarray) -> np.ndarray:
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit
