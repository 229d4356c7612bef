"""DOTA: running means and covariances of all classes, from CLIP's soft labels.

Paper: DOTA: Distributional Test-Time Adaptation of Vision-Language Models. As in the official code
a sample is scored BEFORE it is learned from, and its covariance is taken around the mean before
it. The inverse of the mean covariance is made there after every sample (`refresh=1`), in float16;
here in float64, by default after every 32 samples. Left out: `gamma`, which asks people for the
true labels of unsure images. Probabilities below 1e-8 teach nothing, so most classes rest at each
sample; on average over what is seen that is the same. Constants are those of ImageNet (ViT-B/16).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, ClipScores, score_with_clip, to_host
from soba.adapt._gaussian import discriminant, scores
from soba.adapt._schedule import Refresh, Schedule
from soba.adapt.base import at_least_zero, positive
from soba.adapt.card import AUGMIX, ONE_VIEW, Card, PaperSettings, PaperViews
from soba.adapt.running import RunningAdapter

_NEGLIGIBLE = 1e-8
_BLOCK_VALUES = 1 << 21  # rows x classes x dimensions, at a time


class DOTA(RunningAdapter):
    """Distributional adaptation: logits = CLIP's + w log N(f; mu_k, mean of the Sigma_k).

    The weight w = min(rho c, eta) grows with c, the mean over the classes of 1 + the sum of their
    probabilities so far. A sample is scored first and then learned from.

    Parameters
    ----------
    sigma
        Variance that every class begins with, counted as one sample, as its text is.
    epsilon
        Ridge of the mean covariance.
    eta, rho
        The largest weight, and its growth.
    refresh, total, max_gap
        When means, covariance and weight refresh: see `soba.adapt._schedule.Schedule`.

    Notes
    -----
    O(C d^2) a sample, C * d^2 doubles: 2 GB for 1,000 classes of 512 dimensions.

    Examples
    --------
    >>> dota = DOTA(np.eye(2), refresh=1)
    >>> dota.adapt(np.array([[0.8, 0.6], [0.7, 0.7]])).argmax(axis=1).tolist()
    [0, 0]
    """

    card: ClassVar[Card] = Card(
        "dota",
        title="DOTA",
        colour="#300048",
        provenance="official algorithm",
        paper=PaperSettings(views=PaperViews(ONE_VIEW, AUGMIX, ONE_VIEW)),
    )
    _running = ("counts", "sums", "scatters")

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        sigma: float = 0.002,
        epsilon: float = 1e-4,
        eta: float = 0.2,
        rho: float = 0.005,
        refresh: Refresh = 32,
        total: int | None = None,
        max_gap: int | None = None,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.sigma, self.epsilon = positive(sigma, "sigma"), positive(epsilon, "epsilon")
        if self.epsilon > 1.0:
            raise ValueError(f"epsilon must be 1 at most, not {epsilon!r}")
        self.eta, self.rho = at_least_zero(eta, "eta"), at_least_zero(rho, "rho")
        self.refresh_rule, self.total, self.max_gap = refresh, total, max_gap
        self._reset()

    def _reset(self) -> None:
        super()._reset()
        self._schedule = Schedule(
            self.refresh_rule, classes=self.n_classes, total=self.total, max_gap=self.max_gap
        )
        text = self.text_features.astype(np.float64)
        self._counts = np.ones(self.n_classes)
        self._sums = text.copy()  # counts times means
        self._scatters = np.zeros((self.n_classes, self.dim, self.dim))  # counts times covariances
        self._scatters[:] = self.sigma * np.eye(self.dim)
        self._reschedule()
        # What an official run begins with: no ridge yet.
        self.statistics_ = self._scoring(self.sigma * np.eye(self.dim))

    def _clip(self, batch: Batch) -> ClipScores:
        return score_with_clip(batch, self._mirror("text", self._scaled_text, batch), probs=True)

    def _adapt(self, batch: Batch, ids: np.ndarray | None) -> Array:
        clip = self._clip(batch)
        ids, fresh = self._seen.number(ids, len(batch))
        scored = learned = 0
        while self._due is not None and self._due - self.n_seen <= len(fresh) - learned:
            reach = learned + self._due - self.n_seen
            end = int(fresh[reach - 1]) + 1  # the row at the boundary is scored before the refresh
            self._add_scores(batch, clip, scored, end)
            self._learn(clip, ids, fresh[learned:reach])
            self._settle()
            scored, learned = end, reach
        self._add_scores(batch, clip, scored, len(batch))
        self._learn(clip, ids, fresh[learned:])
        return clip.logits

    def _logits(self, batch: Batch) -> Array:
        features, logits = self._clip_logits(batch)
        nothing = np.empty(0)
        clip = ClipScores(features, logits, nothing, nothing, nothing, None)
        self._add_scores(batch, clip, 0, len(batch))
        return logits

    def _add_scores(self, batch: Batch, clip: ClipScores, start: int, stop: int) -> None:
        if start < stop:
            statistics = self.statistics_
            gaussian = scores(
                batch,
                clip.features[start:stop, :],
                lambda name: self._mirror(name, statistics[name], batch),
            )
            clip.logits[start:stop, :] += float(statistics["weight"][0]) * gaussian

    def _learn(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        if len(rows) == 0:
            return
        soft = to_host(clip.probs[rows]).astype(np.float64)  # type: ignore[index]
        soft[soft < _NEGLIGIBLE] = 0.0
        features = to_host(clip.features[rows, :]).astype(np.float64)
        step = max(1, _BLOCK_VALUES // (self.n_classes * self.dim))
        for at in range(0, len(rows), step):
            self._take_in(soft[at : at + step], features[at : at + step])
        self._count(ids[rows])

    def _take_in(self, soft: np.ndarray, features: np.ndarray) -> None:
        """Add (b, C) soft labels and (b, d) features, each row around the means before it."""
        active = np.flatnonzero(soft.any(axis=0))
        soft = soft[:, active]
        parts = soft[:, :, None] * features[:, None, :]  # (b, a, d)
        counts = self._counts[active] + np.cumsum(soft, axis=0) - soft
        means = (self._sums[active] + np.cumsum(parts, axis=0) - parts) / counts[:, :, None]
        gaps = (features[:, None, :] - means).transpose(1, 0, 2)  # (a, b, d)
        weighted = (gaps * soft.T[:, :, None]).transpose(0, 2, 1)  # (a, d, b)
        for place, k in enumerate(active):  # classes that learn, not all: a copy of all is larger
            self._scatters[k] += weighted[place] @ gaps[place]
        self._counts[active] += soft.sum(axis=0)
        self._sums[active] += parts.sum(axis=0)

    def _settle(self) -> None:
        overall = np.tensordot(1.0 / self._counts, self._scatters, axes=1) / self.n_classes
        self.statistics_ = self._scoring(
            (1.0 - self.epsilon) * overall + self.epsilon * np.eye(self.dim)
        )
        self._reschedule()

    def _reschedule(self) -> None:
        self._due = self._schedule.next_after(self.n_seen)

    def _scoring(self, covariance: np.ndarray) -> dict[str, np.ndarray]:
        means = self._sums / self._counts[:, None]
        statistics = discriminant(means, np.linalg.inv(covariance))
        del statistics["precision"]  # as large as all else, and used up
        statistics["weight"] = np.array([min(self.rho * float(self._counts.mean()), self.eta)])
        return {name: np.ascontiguousarray(array) for name, array in statistics.items()}

    def _arrays(self) -> dict[str, np.ndarray]:
        statistics = {f"statistics.{name}": array for name, array in self.statistics_.items()}
        return super()._arrays() | statistics

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        super()._restore(arrays, meta)
        self.statistics_ = {name: arrays[f"statistics.{name}"] for name in self.statistics_}
        self._reschedule()
