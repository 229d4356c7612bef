"""TransCLIP-ZS: all images of a set at once, Gaussian classes, CLIP's prior, and neighbours' votes.

Paper: Boosting Vision-Language Models with Transduction (NeurIPS 2024). As in the official code:
class means begin as those of the 8 samples likeliest to be of each class, weighted by their
probability; one diagonal covariance for all, from 1/d; 10 rounds of 5 steps for the labels and one
for means and variances, then 5 last steps; means are brought to unit length; a neighbour counts
both ways. There the n x n cosines are made at once and the first of each row is taken to be the
image itself; here they are made in blocks, and the image is left out by its number.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, to_host
from soba.adapt._neighbours import Neighbours, blocks, soft_labels, unit
from soba.adapt.base import at_least_zero, whole
from soba.adapt.card import ONE_VIEW, Card, PaperSettings, PaperViews
from soba.adapt.transductive import TransductiveAdapter

_LEAST_VARIANCE = 1e-12


class TransCLIP(TransductiveAdapter):
    """Zero-shot transduction: soft labels, class means and one diagonal variance, in turns.

    With p CLIP's probabilities and w the cosines to the nearest neighbours, the soft labels are

        u = softmax(text_weight log p + likelihood_weight log N(f; mu_k, diag v) + votes)
        votes_i = sum_j (w_ij + w_ji) u_j / (2 neighbours)

    and the logits are what stands in that softmax.

    Parameters
    ----------
    confident
        Samples that the mean of each class begins with.
    neighbours
        Of each sample, by cosine; 0 leaves their votes out.
    steps
        For the soft labels in each round.
    text_weight, likelihood_weight
        Of the text's log-probability and of the Gaussian's.

    Notes
    -----
    O(n^2 d) for the neighbours, O(n C (d + neighbours steps)) a round; about 4 n C doubles.

    Examples
    --------
    >>> text = np.eye(2)
    >>> features = np.array([[0.9, 0.1], [0.8, 0.3], [0.1, 0.9], [0.3, 0.8]])
    >>> TransCLIP(text, logit_scale=10.0).transduce(features).argmax(axis=1).tolist()
    [0, 0, 1, 1]
    """

    card: ClassVar[Card] = Card(
        "transclip",
        title="TransCLIP-ZS",
        colour="#300090",
        family="transductive",
        provenance="official algorithm",
        paper=PaperSettings(views=PaperViews(ONE_VIEW, ONE_VIEW, ONE_VIEW)),
    )

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        confident: int = 8,
        neighbours: int = 3,
        steps: int = 5,
        text_weight: float = 1.0,
        likelihood_weight: float = 0.02,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.confident = whole(confident, "confident")
        self.neighbours = whole(neighbours, "neighbours", least=0)
        self.steps = whole(steps, "steps")
        self.text_weight = at_least_zero(text_weight, "text_weight")
        self.likelihood_weight = at_least_zero(likelihood_weight, "likelihood_weight")

    def transduce(self, features: Array, *, rounds: int = 10, out: Array | None = None) -> Array:
        """Logits of a whole set, (n, d) -> (n, C), in `out` if given; changes nothing."""
        return self._transduced(features, rounds, out)

    def _answers(self, batch: Batch, rounds: int) -> Array:
        features, logits = self._clip_logits(batch)
        x = to_host(features)
        prior = to_host(logits).astype(np.float64)
        prior -= prior.max(axis=1, keepdims=True)
        prior -= np.log(np.exp(prior).sum(axis=1, keepdims=True))  # (n, C) log p
        labels = np.exp(prior)
        means = self._first_means(x, prior)
        variance = np.full(self.dim, 1.0 / self.dim)
        graph = Neighbours.of(x, min(self.neighbours, len(x) - 1))
        fixed = np.empty_like(prior)
        prior *= self.text_weight
        for turn in range(rounds + 1):
            self._add_likelihood(x, prior, means, variance, fixed)
            for _ in range(self.steps):
                answers = graph.with_votes(fixed, labels)
                labels = soft_labels(answers)
            if turn < rounds:
                means, variance = _fitted(x, labels, means)
        return answers

    def _first_means(self, x: np.ndarray, log_p: np.ndarray) -> np.ndarray:
        """Unit means of the samples likeliest to be of each class, weighted by how likely."""
        count = min(self.confident, len(x))
        surest = np.argpartition(-log_p, count - 1, axis=0)[:count]  # (count, C)
        chosen = np.take_along_axis(log_p, surest, axis=0)
        # Only the direction counts: relative to the likeliest, nothing underflows.
        weights = np.exp(chosen - chosen.max(axis=0))
        means = np.zeros((self.n_classes, self.dim))
        for rank in range(count):
            means += weights[rank][:, None] * x[surest[rank]]
        return unit(means, self.text_features.astype(np.float64))

    def _add_likelihood(
        self,
        x: np.ndarray,
        prior: np.ndarray,
        means: np.ndarray,
        variance: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """out = prior + the weighted log-likelihood, but for a constant of each row."""
        weights = means / variance
        offsets = 0.5 * (weights * means).sum(axis=1)
        for rows in blocks(len(x), self.n_classes):
            likelihood = x[rows].astype(np.float64) @ weights.T - offsets
            out[rows] = prior[rows] + self.likelihood_weight * likelihood


def _fitted(x: np.ndarray, labels: np.ndarray, means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit class means under soft labels, and the variance around them that all classes share."""
    sums, squares = np.zeros_like(means), np.zeros(x.shape[1])
    for rows in blocks(len(x), x.shape[1]):
        part = x[rows].astype(np.float64)
        sums += labels[rows].T @ part
        squares += (part * part).sum(axis=0)
    means = unit(sums, means)
    counts = labels.sum(axis=0)
    # sum_ik u_ik (x_i - mu_k)^2, multiplied out; the labels of a row add up to 1.
    scatter = squares + (means * (counts[:, None] * means - 2.0 * sums)).sum(axis=0)
    return means, np.maximum(scatter / counts.sum(), _LEAST_VARIANCE)
