"""From the logits of a batch of images to their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from soba.adapt._arrays import softmax
from soba.adapt.base import Adapter
from soba.answers import Answer

if TYPE_CHECKING:  # it needs Pillow
    from soba.encode.features import Encoded


def answered(
    part: Encoded, logits: np.ndarray, scaled_text: np.ndarray, names: Sequence[str], top: int
) -> list[Answer]:
    """The answers to one batch, in its order; `scaled_text` (C, d) says what plain CLIP thinks."""
    answers = {
        index: Answer(part.images[index - part.start].name, error=why)
        for index, why in part.broken.items()
    }
    plain = softmax(np, part.features @ scaled_text.T)
    scored = zip(part.indices, part.read, softmax(np, logits), plain, strict=True)
    for index, picture, shares, guesses in scored:
        best = np.argsort(-shares, kind="stable")[:top]
        candidates = tuple((names[k], float(shares[k])) for k in best)
        guess = int(guesses.argmax())
        said = (names[guess], float(guesses[guess]))
        answers[int(index)] = Answer(
            picture.name, *candidates[0], candidates, *said, id=picture.content_id
        )
    return [answers[index] for index in sorted(answers)]


def learned(adapter: Adapter, features: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(n, C) logits of images that are learned from; the same one may come twice among them."""
    if not len(features):
        return np.asarray(adapter.logits(features))
    rows, place = first_of_each(ids)
    logits: np.ndarray = np.asarray(adapter.adapt(features[rows], ids=ids[rows]))[place]
    return logits


def first_of_each(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows where ids come first, in order, and for every row its place among these.

    >>> rows, place = first_of_each(np.array([7, 3, 7, 5]))
    >>> rows.tolist(), place.tolist()
    ([0, 1, 3], [0, 1, 0, 2])
    """
    _, first, again = np.unique(ids, return_index=True, return_inverse=True)
    order = np.sort(first)
    return order, np.searchsorted(order, first)[again]
