"""StatA: Gaussian classes with neighbours' votes, held near what the text alone would say.

Paper: Realistic Test-Time Adaptation of Vision-Language Models (CVPR 2025). Written from the
formulas. Readings that they leave open: a class begins with its text as its mean, and with the
variance around all texts under CLIP's soft labels, which is also its anchor; the mean that the
variance is taken around is the one just made, so that mean and variance maximise one likelihood;
10 rounds of 5 steps for the labels and one for the statistics are followed by 5 last steps, as in
TransCLIP. The official code answers in batches where it is told to; a batch is a set here.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, to_host
from soba.adapt._neighbours import Neighbours, blocks, soft_labels, unit
from soba.adapt.base import at_least_zero, positive, whole
from soba.adapt.card import ONE_VIEW, Card, PaperSettings, PaperViews
from soba.adapt.transductive import TransductiveAdapter

_LEAST_VARIANCE = 1e-12


class StatA(TransductiveAdapter):
    """Transduction with statistical anchors: a class without samples stays where its text is.

    The soft labels are, with z CLIP's logits and w the cosines to the nearest neighbours,

        u = softmax(z + likelihood_weight log N(f; mu_k, diag v_k) + votes)
        votes_i = sum_j (w_ij + w_ji) u_j / (2 neighbours)

    and the logits are what stands in that softmax. With n_k samples that have class k as their
    likeliest, b = n_k / (anchor + n_k), m the mean of its samples, t its text and s the variance
    around all texts, mu_k = unit(b m + (1 - b) t) and
    v_k = b E(f - mu_k)^2 + (1 - b) (s + (t - mu_k)^2).

    Parameters
    ----------
    anchor
        Samples that the text of a class counts for.
    neighbours
        Of each sample, by cosine; 0 leaves their votes out.
    steps
        For the soft labels in each round.
    likelihood_weight
        Of the Gaussian's log-likelihood.

    Notes
    -----
    O(n^2 d) for the neighbours, in blocks; O(n C (d + neighbours steps)) a round; about 4 n C
    doubles.

    Examples
    --------
    >>> text = np.eye(2)
    >>> features = np.array([[0.9, 0.1], [0.8, 0.3], [0.1, 0.9], [0.3, 0.8]])
    >>> StatA(text, logit_scale=10.0).transduce(features).argmax(axis=1).tolist()
    [0, 0, 1, 1]
    """

    card: ClassVar[Card] = Card(
        "stata",
        title="StatA",
        colour="#003c54",
        family="transductive",
        provenance="official algorithm",
        paper=PaperSettings(views=PaperViews(ONE_VIEW, ONE_VIEW, ONE_VIEW)),
    )

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        anchor: float = 1.0,
        neighbours: int = 3,
        steps: int = 5,
        likelihood_weight: float = 0.02,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.anchor = positive(anchor, "anchor")
        self.neighbours = whole(neighbours, "neighbours", least=0)
        self.steps = whole(steps, "steps")
        self.likelihood_weight = at_least_zero(likelihood_weight, "likelihood_weight")

    def transduce(self, features: Array, *, rounds: int = 10, out: Array | None = None) -> Array:
        """Logits of a whole set, (n, d) -> (n, C), in `out` if given; changes nothing."""
        return self._transduced(features, rounds, out)

    def _answers(self, batch: Batch, rounds: int) -> Array:
        features, logits = self._clip_logits(batch)
        x, clip_logits = to_host(features), to_host(logits)
        labels = soft_labels(clip_logits.astype(np.float64))
        graph = Neighbours.of(x, min(self.neighbours, len(x) - 1))
        means = self.text_features.astype(np.float64)
        spread = _scatter(_sums(x, labels), means).sum(axis=0) / len(x)  # (d,)
        variances = np.maximum(np.tile(spread, (self.n_classes, 1)), _LEAST_VARIANCE)
        fixed = np.empty_like(labels)
        for turn in range(rounds + 1):
            self._add_likelihood(x, clip_logits, means, variances, fixed)
            for _ in range(self.steps):
                answers = graph.with_votes(fixed, labels)
                labels = soft_labels(answers)
            if turn < rounds:
                means, variances = self._fitted(x, labels, spread)
        return answers

    def _add_likelihood(
        self,
        x: np.ndarray,
        logits: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """out = CLIP's logits + the weighted log-likelihood, but for a constant of each row."""
        precisions = 1.0 / variances
        weights = means * precisions
        offsets = 0.5 * (weights * means + np.log(variances)).sum(axis=1)
        for rows in blocks(len(x), max(x.shape[1], self.n_classes)):
            part = x[rows].astype(np.float64)
            likelihood = part @ weights.T - 0.5 * (part * part) @ precisions.T - offsets
            out[rows] = logits[rows] + self.likelihood_weight * likelihood

    def _fitted(
        self, x: np.ndarray, labels: np.ndarray, spread: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the classes, (C, d) each, anchored."""
        text = self.text_features.astype(np.float64)
        counts = np.bincount(labels.argmax(axis=1), minlength=self.n_classes)
        trust = (counts / (self.anchor + counts))[:, None]
        sums = _sums(x, labels)
        # A class whose labels underflow has no samples: its own statistics do not count.
        weights = np.maximum(sums[0], np.finfo(np.float64).tiny)[:, None]
        means = unit(trust * sums[1] / weights + (1.0 - trust) * text, text)
        own = _scatter(sums, means) / weights
        variances = trust * own + (1.0 - trust) * (spread + (text - means) ** 2)
        return means, np.maximum(variances, _LEAST_VARIANCE)


Sums = tuple[np.ndarray, np.ndarray, np.ndarray]  # of labels (C,), and with them of f and f^2


def _sums(x: np.ndarray, labels: np.ndarray) -> Sums:
    features = np.zeros((labels.shape[1], x.shape[1]))
    squares = np.zeros_like(features)
    for rows in blocks(len(x), x.shape[1]):
        part = x[rows].astype(np.float64)
        features += labels[rows].T @ part
        squares += labels[rows].T @ (part * part)
    return labels.sum(axis=0), features, squares


def _scatter(sums: Sums, means: np.ndarray) -> np.ndarray:
    """(C, d) sums of squared deviations from some means, multiplied out."""
    weights, features, squares = sums
    scatter: np.ndarray = squares + means * (weights[:, None] * means - 2.0 * features)
    return scatter
