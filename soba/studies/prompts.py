"""Which class names and templates do the images contradict? Hints, without labels, and no proof.

The adapted classifier's answers stand in for labels, so a hint is as good as they are;
docs/check.md has how often hints were right where labels are known. Text and images lie in two
cones of CLIP's space, so both are compared after their own centre is taken away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_IMAGES = 5  # of a class, to say anything about its name
HALF = 0.5


@dataclass(frozen=True)
class Contradicted:
    """A class whose images do not answer to its name.

    Either the name is nearer to the images of `rival` than to its own, or CLIP alone calls fewer
    than half of its images by it and the most of the others `rival`.
    """

    label: int
    rival: int
    images: int  # that the adapted classifier calls so
    called_so: float  # share of them that CLIP alone calls so
    nearer_rival: bool


@dataclass(frozen=True)
class Alike:
    """Two names that are nearer to each other than to the mean of all names."""

    first: int
    second: int
    cosine: float  # around the mean of all names


@dataclass(frozen=True)
class RankedTemplate:
    """A template, and how often CLIP says with it alone what the adapted classifier says."""

    template: str
    agreement: float


@dataclass(frozen=True)
class PromptHints:
    """What is suspicious, the most first."""

    contradicted: tuple[Contradicted, ...]
    alike: tuple[Alike, ...]
    unused: tuple[int, ...]  # classes that no image is answered with
    images: int


def prompt_hints(
    text: np.ndarray, features: np.ndarray, zero_shot: np.ndarray, adapted: np.ndarray
) -> PromptHints:
    """Hints from (C, d) text and (n, d) image features and what both answer, (n,) each.

    Examples
    --------
    >>> text = np.eye(3)
    >>> images = np.repeat(text, 6, axis=0)
    >>> said, adapted = np.repeat([0, 1, 1], 6), np.repeat([0, 1, 2], 6)
    >>> hints = prompt_hints(text, images, said, adapted)
    >>> [(hint.label, hint.rival, hint.nearer_rival) for hint in hints.contradicted]
    [(2, 1, False)]
    """
    counts = np.bincount(adapted, minlength=len(text))
    near = _nearness(text, features, adapted, counts)
    hints = []
    for label in np.flatnonzero(counts >= LEAST_IMAGES).tolist():
        said = np.bincount(zero_shot[adapted == label], minlength=len(text))
        called_so = float(said[label] / counts[label])
        nearest = int(near[label].argmax())
        if nearest != label or called_so < HALF:
            said[label] = -1
            rival = nearest if nearest != label else int(said.argmax())
            hints.append(
                Contradicted(label, rival, int(counts[label]), called_so, nearest != label)
            )
    hints.sort(key=lambda hint: (hint.called_so, hint.label))
    unused = np.flatnonzero(counts == 0).tolist() if len(adapted) else []
    return PromptHints(tuple(hints), _alike(text), tuple(unused), len(adapted))


def rank_templates(
    templates: Sequence[str],
    text_of_each: Iterable[np.ndarray],
    features: np.ndarray,
    adapted: np.ndarray,
) -> tuple[RankedTemplate, ...]:
    """Templates by their agreement with the adapted answers, the best first.

    `text_of_each` has (C, d) features of each template by itself.
    """
    rows = _unit(features)
    ranked = []
    for template, text in zip(templates, text_of_each, strict=True):
        answers = (rows @ _unit(text).T).argmax(axis=1)
        ranked.append(RankedTemplate(template, float((answers == adapted).mean())))
    return tuple(sorted(ranked, key=lambda each: -each.agreement))


def _nearness(
    text: np.ndarray, features: np.ndarray, adapted: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """(C, C) cosine of each name, in rows, and the mean image of each class; both centred."""
    enough = counts >= LEAST_IMAGES
    sums = np.zeros((len(text), features.shape[1]))
    np.add.at(sums, adapted, _unit(features))
    means = sums / np.maximum(counts, 1)[:, None]
    near = np.full((len(text), len(text)), -np.inf)
    if enough.sum() < 2:
        near[np.diag_indices(len(text))] = 1.0  # nothing to compare with
        return near
    text = _unit(text)
    names = _unit(text - text[enough].mean(axis=0))
    near[:, enough] = names @ _unit(means[enough] - means[enough].mean(axis=0)).T
    return near


def _alike(text: np.ndarray) -> tuple[Alike, ...]:
    if len(text) < 3:  # around their own mean two names always point apart
        return ()
    text = _unit(text)
    names = _unit(text - text.mean(axis=0))
    cosines = np.triu(names @ names.T, 1)
    pairs = np.argwhere(cosines > HALF).tolist()
    alike = [Alike(first, second, float(cosines[first, second])) for first, second in pairs]
    return tuple(sorted(alike, key=lambda pair: -pair.cosine))


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, np.float64)
    unit: np.ndarray = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
    return unit
