"""OGA: a Gaussian for each class over the samples CLIP is surest of, times CLIP's probabilities.

Paper: Online Gaussian Adaptation of Vision-Language Models (OGA). From the official code: the mean
of a class divides the sum of its samples by the capacity, not by their number, so that it begins
short; a class with one sample or none has its text as its mean; up to 4 d samples the precision is
a ridge estimate, above it the pseudo-inverse. There a batch of 32 is learned and then scored; so
that answers do not depend on how a stream is cut into calls, ours scores each sample after it is
learned: means follow every sample, the covariance is made anew after each 32 of the stream, and the
first 31 answers are CLIP's. Its memory is float16, so that all samples of entropy below 6e-8 are
equally sure; ours tells them apart.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, like
from soba.adapt._following import FollowingAdapter
from soba.adapt._gaussian import discriminant, ridge_precision, scores
from soba.adapt.base import at_least_zero, whole
from soba.adapt.card import ONE_VIEW, Card, PaperSettings, PaperViews

_SEEN_ENOUGH = 2  # samples that give a class a mean of its own
_SCATTERS = 3  # samples of some class before there is a covariance


class OGA(FollowingAdapter):
    """Online Gaussian adaptation: logits = CLIP's + tau log N(f; mu_k, Sigma).

    Parameters
    ----------
    capacity
        Samples kept per pseudo-class.
    tau
        Weight of the Gaussian log-likelihood against CLIP's log-probability.
    batch
        Samples of the stream from one refresh of the covariance to the next.

    Notes
    -----
    O(C d + d^2) a sample and O((m + d) d^2) every `batch` samples, C * capacity * d floats.

    Examples
    --------
    >>> oga = OGA(np.eye(3), batch=4)
    >>> stream = np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.8, 0.3, 0.1], [0.6, 0.5, 0.0]])
    >>> oga.adapt(stream).argmax(axis=1).tolist()
    [0, 1, 0, 0]
    """

    card: ClassVar[Card] = Card(
        "oga",
        title="OGA",
        colour="#3c0c00",
        provenance="official algorithm",
        paper=PaperSettings(views=PaperViews(ONE_VIEW, ONE_VIEW, ONE_VIEW)),
    )
    total = max_gap = None

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        capacity: int = 8,
        tau: float = 0.05,
        batch: int = 32,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.capacity, self.tau = whole(capacity, "capacity"), at_least_zero(tau, "tau")
        self.batch = whole(batch, "batch")
        self._reset()

    def _reset(self) -> None:
        self.refresh_rule = self.batch
        super()._reset()

    def _statistics(self) -> dict[str, np.ndarray] | None:
        items = self.queue.items()
        if len(items.ids) == 0:
            return None
        features, labels = items.features.astype(np.float64), items.labels
        counts = np.bincount(labels, minlength=self.n_classes)
        seen, starts = np.unique(labels, return_index=True)  # items come class by class
        means = self.text_features.astype(np.float64)
        sums = np.add.reduceat(features, starts)
        enough = counts[seen] >= _SEEN_ENOUGH
        assert self.capacity is not None
        means[seen[enough]] = sums[enough] / self.capacity
        return discriminant(means, self._precision(features - means[labels], int(counts.max())))

    def _precision(self, centred: np.ndarray, most: int) -> np.ndarray:
        (n, d), apply = centred.shape, None
        if most >= _SCATTERS and n <= 4 * d:
            apply = ridge_precision(centred)
        elif most >= _SCATTERS:
            x = centred - centred.mean(axis=0)
            inverse: np.ndarray = np.linalg.pinv(x.T @ x / (n - 1), hermitian=True)
            return inverse
        return d * np.eye(d) if apply is None else apply(np.eye(d))

    def _follow(self, label: int) -> None:
        size = int(self.queue.sizes[label])
        if size >= _SEEN_ENOUGH:
            slots = self.queue.slots[label, :size]
            total = self.queue.features[label, slots].astype(np.float64).sum(axis=0)
            self._move(label, total / self.capacity)

    def _score(self, batch: Batch, features: Array) -> Array:
        assert self.statistics_ is not None
        known = self.statistics_
        # Not through a mirror, which would not see rows change.
        return self.tau * scores(batch, features, lambda name: like(batch, known[name]))
