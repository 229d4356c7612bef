"""NCM: nearest class mean of the queue, added to CLIP's logits.

Paper: the training-free baseline of SOBA (ICCV 2025, Sec. 3.1): z + alpha * cos(f, mu_k). Its
ablation also scores by l1 and l2 distance, in the same way. The paper says nothing of classes
without samples: they get the mean of the others' scores, so that they neither win nor lose by it.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch
from soba.adapt._schedule import Refresh
from soba.adapt._statistics import class_statistics
from soba.adapt.base import at_least_zero, one_of
from soba.adapt.card import AUGMIX, ONE_VIEW, Card, PaperSettings, PaperViews
from soba.adapt.queue_adapter import PrototypeAdapter


class NCM(PrototypeAdapter):
    """Nearest class mean over the entropy queue.

    Parameters
    ----------
    capacity
        Samples kept per pseudo-class; None keeps all.
    alpha
        Weight of the class means against CLIP.
    metric
        "cosine" (the paper's baseline), "l1" or "l2".
    refresh, total, max_gap
        When the means refresh: see `soba.adapt._schedule.Schedule`.

    Notes
    -----
    O(C d) a sample (distances: about ten times that), C * capacity * d floats.

    Examples
    --------
    >>> ncm = NCM(np.eye(3), alpha=1.0, refresh=2)
    >>> stream = np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.6, 0.5, 0.0]])
    >>> ncm.adapt(stream).argmax(axis=1).tolist()
    [0, 1, 0]
    """

    card: ClassVar[Card] = Card(
        "ncm",
        title="NCM",
        colour="#c676c6",
        provenance="re-implementation from the paper",
        paper=PaperSettings(schedule="tenths", views=PaperViews(ONE_VIEW, AUGMIX, ONE_VIEW)),
    )

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        capacity: int | None = 16,
        alpha: float = 15.0,
        metric: str = "cosine",
        refresh: Refresh = "growth",
        total: int | None = None,
        max_gap: int | None = None,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.capacity, self.alpha = capacity, at_least_zero(alpha, "alpha")
        self.metric = one_of(metric, ("cosine", "l1", "l2"), "metric")
        self.refresh_rule, self.total, self.max_gap = refresh, total, max_gap
        self._reset()

    def _statistics(self) -> dict[str, np.ndarray] | None:
        by_class = class_statistics(self.queue, scatter=False)
        if len(by_class.seen) < 2:
            return None
        means = by_class.means
        if self.metric == "cosine":
            means = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        return self._spread(by_class.seen, means)

    def _score(self, batch: Batch, features: Array) -> Array:
        if self.metric == "cosine":
            return self._linear(batch, features * self.alpha)
        return self.alpha * self._nearness(batch, features, self.metric)
