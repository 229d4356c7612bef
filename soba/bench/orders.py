"""The orders a stream of images may come in, by name and seed.

"shuffled" is the order of the literature: everything at random. "sorted" has one class after the
other, the hardest order for a method that learns from its own answers. The other two stream all
domains of a benchmark as one: "sequence" one domain after the other, as the table lists them,
"mixed" all together. Domains then share one list of classes, see `join`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from soba.feature_set import FeatureSet

ORDERS = ("shuffled", "sorted", "sequence", "mixed")
JOINED = ("sequence", "mixed")  # streams over all domains at once


def arrange(
    name: str, labels: np.ndarray, classes: int, seed: int, domains: np.ndarray | None = None
) -> np.ndarray:
    """The positions of the images in their order of arrival.

    Examples
    --------
    >>> arrange("sequence", np.zeros(4, int), 1, seed=0, domains=np.array([1, 0, 1, 0])).tolist()
    [1, 3, 2, 0]
    """
    rng = np.random.default_rng(seed)
    match name:
        case "shuffled" | "mixed":
            return rng.permutation(len(labels))
        case "sorted":
            turn = rng.permutation(classes)
            return sorted_by_class(labels, rng.permutation(len(labels)), turn)
        case "sequence" if domains is not None:
            order = rng.permutation(len(labels))
            return order[np.argsort(domains[order], kind="stable")]
        case "sequence":
            raise ValueError("the order 'sequence' needs the domain of every image")
    raise ValueError(f"no order {name!r}; there are: {', '.join(ORDERS)}")


def sorted_by_class(labels: np.ndarray, order: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """One class after the other, by the turn of each; the images of a class as in `order`."""
    return order[np.argsort(turn[labels[order]], kind="stable")]


def join(
    sets: Sequence[FeatureSet], class_ids: Sequence[Sequence[str]]
) -> tuple[FeatureSet, np.ndarray]:
    """Several domains as one set over the union of their classes, and the domain of each image.

    Parameters
    ----------
    sets
        Labelled, of one encoder, with as many views.
    class_ids
        What tells the classes of each set apart, in label order: names, or WordNet ids where
        two classes share a name. The same id in two sets is the same class.

    Notes
    -----
    The classes keep the order in which they first appear, and a class has the text of the first
    set that has it: with ImageNet first, ImageNet's. A set of few classes thus becomes a harder
    task than by itself: ImageNet-A's 200 are told apart from all 1000.
    """
    first = sets[0]
    for other in sets[1:]:
        first.check_encoder(other)
        if (other.logit_scale, other.views) != (first.logit_scale, first.views):
            raise ValueError(
                f"{other.source}: of another encoder or with other views than {first.source}"
            )
    index: dict[str, int] = {}
    text: list[np.ndarray] = []
    names, labels = [], []
    for features, ids in zip(sets, class_ids, strict=True):
        if features.labels is None:
            raise ValueError(f"{features.source}: has no labels")
        for position, key in enumerate(ids):
            if index.setdefault(key, len(index)) == len(text):
                text.append(features.text_features[position])
                names.append((features.class_names or ids)[position])
        labels.append(np.array([index[key] for key in ids])[features.labels])
    joined = dataclasses.replace(
        first,
        image_features=np.concatenate([features.image_features for features in sets]),
        text_features=np.stack(text),
        labels=np.concatenate(labels),
        class_names=tuple(names),
        prompts=_of_all([features.prompts for features in sets]),
        templates_fingerprint=_of_all([features.templates_fingerprint for features in sets]),
        prompt_features=None,
        keys=None,
    )
    return joined, np.repeat(np.arange(len(sets)), [len(features) for features in sets])


def _of_all(values: Sequence[Any]) -> Any:
    """What all of them are, or None."""
    return values[0] if all(value == values[0] for value in values) else None
