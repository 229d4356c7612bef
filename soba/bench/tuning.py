"""Where hyper-parameters come from, said honestly.

The weight of the adapter, alpha, is what the papers tune. It is searched over fixed multiples of
the paper's value on one stream: of the validation split, of one data set for all others (the
paper's own protocol, with ImageNet, whose validation images are its test set), of the test set
without its labels, or, for those who want to know what it would give, with them. Whatever was
chosen with labels that are also scored is recorded as tuned on "test labels".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from soba.adapt.base import parameter_defaults
from soba.feature_set import FeatureSet
from soba.registry import adapter_class

FACTORS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # times the paper's alpha
SEED = 1000  # of the order that is searched on: not one of those that are scored
PAPER, TEST_LABELS = "paper or given", "test labels"

_NEIGHBOURS = 5
_ASKED = 2000  # images whose neighbours are looked up, at most


@dataclass(frozen=True)
class Tuned:
    """The alpha that was chosen, and the score of each candidate."""

    alpha: float
    scores: dict[float, float]


def candidates(method: str) -> tuple[float, ...]:
    """The values of alpha to try; none for a method that has no fixed alpha.

    Examples
    --------
    >>> candidates("tda")
    (0.2, 0.4, 1.0, 2.0, 4.0, 10.0, 20.0)
    >>> candidates("soba+")
    ()
    """
    paper = parameter_defaults(adapter_class(method)).get("alpha")
    return () if paper is None else tuple(float(f"{factor * paper:.6g}") for factor in FACTORS)


def search(method: str, run: Callable[[float], float]) -> Tuned:
    """The candidate with the highest `run(alpha)`; among equals, the one nearest the paper's."""
    scores = {alpha: run(alpha) for alpha in candidates(method)}
    paper = parameter_defaults(adapter_class(method))["alpha"]
    nearness = {alpha: -abs(np.log(alpha / paper)) for alpha in scores}
    return Tuned(max(scores, key=lambda alpha: (scores[alpha], nearness[alpha])), scores)


def tuned_on(tune_on: str, scored: tuple[str, ...]) -> str:
    """What a record says about a setting searched on `tune_on`, where `scored` sets are scored.

    Examples
    --------
    >>> tuned_on("val", ("dtd",)), tuned_on("imagenet", ("dtd",))
    ('val', 'imagenet')
    >>> tuned_on("imagenet", ("imagenet",)), tuned_on("test", ("dtd",))
    ('test labels', 'test labels')
    """
    if tune_on == "paper":
        return PAPER
    return TEST_LABELS if tune_on == "test" or tune_on in scored else tune_on


class NeighbourAgreement:
    """How well answers agree with those of the nearest images: a score that needs no labels.

    Images that look alike mostly belong together, so of two classifiers the one whose answers
    change less between neighbours is likelier right. Only answers count, not how sure they are:
    entropy and mutual information, the usual scores without labels, rise with any alpha, since
    a larger one makes every answer surer, and chose harmful values on small streams of WHU-RS19.
    Agreement by chance is taken out, or one answer for everything would be the best.

    Examples
    --------
    >>> features = FeatureSet(np.eye(4)[[0, 0, 0, 1, 1, 1]] + 0.01, np.eye(4)[:2])
    >>> score = NeighbourAgreement(features, neighbours=2)
    >>> order = np.arange(6)
    >>> [round(score(order, np.eye(2)[answers]), 2) for answers in (
    ...     [0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0])]
    [1.0, -0.33, 0.0]
    """

    def __init__(self, features: FeatureSet, neighbours: int = _NEIGHBOURS) -> None:
        images = features.image_features
        rows = np.asarray(images if images.ndim == 2 else images[:, 0], np.float32)
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        n = len(rows)
        if n < 2:
            raise ValueError(f"{features.source}: one image has no neighbours to agree with")
        self.asked = np.sort(np.random.default_rng(SEED).permutation(n)[:_ASKED])
        self.near = np.empty((len(self.asked), min(neighbours, n - 1)), np.int64)
        for start in range(0, len(self.asked), 256):
            block = self.asked[start : start + 256]
            likeness = rows[block] @ rows.T
            likeness[np.arange(len(block)), block] = -np.inf  # not its own neighbour
            closest = np.argpartition(-likeness, self.near.shape[1] - 1, axis=1)
            self.near[start : start + 256] = closest[:, : self.near.shape[1]]

    def __call__(self, order: np.ndarray, logits: np.ndarray) -> float:
        answers = np.empty(len(order), np.int64)
        answers[order] = logits.argmax(axis=1)
        agreed = float((answers[self.near] == answers[self.asked][:, None]).mean())
        shares = np.bincount(answers) / len(answers)
        chance = float((shares**2).sum())
        return (agreed - chance) / (1.0 - chance) if chance < 1.0 else 0.0

    def entry(self, order: np.ndarray, logits: np.ndarray) -> dict[str, Any]:
        """The score as an entry of a record, for `soba.bench.evaluate.evaluate`."""
        return {"agreement": self(order, logits)}
