"""PTA: a prototype of each class that follows the images CLIP gives it some probability of.

Paper: Prototype-Based Test-Time Adaptation of Vision-Language Models (ICML 2026). Written from the
formulas. Readings that they leave open: only a class that has just learned moves its prototype
towards its running mean; the probabilities are CLIP's and not the adapted ones; the prototypes are
scored with CLIP's own logit scale. The running mean begins at 0, so a class counts its text for
less and less as it learns. A sample is learned and then scored. What is kept depends on the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, ClipScores, like, score_with_clip, to_host
from soba.adapt.base import at_least_zero, positive
from soba.adapt.card import ONE_VIEW, Card, PaperSettings, PaperViews
from soba.adapt.running import RunningAdapter

_BLOCK_ROWS = 128


class PTA(RunningAdapter):
    """Prototype-based adaptation: logits = CLIP's + scale <f, R_k>.

    A sample f with probability p_k of class k, `threshold` at least, moves the running mean
    P_k <- P_k + (1 - exp(-p_k / time_constant)) (f - P_k), from 0, and then the prototype
    R_k <- unit(memory R_k + (1 - memory) P_k), from the text.

    Parameters
    ----------
    time_constant
        Of the running means, in samples of probability 1; 50 for the paper's Caltech101.
    threshold
        Probability of a class that a sample needs to teach it.
    memory
        Share of the prototype itself in the next one.

    Notes
    -----
    O(C d) a sample, 2 C d doubles.

    Examples
    --------
    >>> pta = PTA(np.eye(2), logit_scale=10.0)
    >>> pta.adapt(np.array([[0.8, 0.6]])).round(2).tolist()
    [[17.93, 14.3]]
    >>> pta.prototypes_.round(2).tolist()
    [[0.87, 0.5], [0.33, 0.94]]
    """

    card: ClassVar[Card] = Card(
        "pta",
        title="PTA",
        colour="#486cfc",
        provenance="official algorithm",
        paper=PaperSettings(
            constants=Path(__file__).with_name("pta.csv"),
            views=PaperViews(ONE_VIEW, ONE_VIEW, ONE_VIEW),
        ),
    )
    _running, _scoring_reads = ("averages", "prototypes"), ("prototypes",)

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        time_constant: float = 20.0,
        threshold: float = 0.1,
        memory: float = 0.01,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.time_constant = positive(time_constant, "time_constant")
        self.threshold = at_least_zero(threshold, "threshold")
        self.memory = at_least_zero(memory, "memory")
        if self.memory > 1.0:
            raise ValueError(f"memory must be between 0 and 1, not {memory!r}")
        self._reset()

    @property
    def prototypes_(self) -> np.ndarray:
        """(C, d) unit rows; the text of a class that nothing was learned of."""
        return self._view()._prototypes.copy()

    def _reset(self) -> None:
        super()._reset()
        self._averages = np.zeros((self.n_classes, self.dim))
        self._prototypes = self.text_features.astype(np.float64)

    def _clip(self, batch: Batch) -> ClipScores:
        return score_with_clip(batch, self._mirror("text", self._scaled_text, batch), probs=True)

    def _adapt(self, batch: Batch, ids: np.ndarray | None) -> Array:
        clip = self._clip(batch)
        ids, fresh = self._seen.number(ids, len(batch))
        for start in range(0, len(batch), _BLOCK_ROWS):
            stop = start + _BLOCK_ROWS
            features = clip.features[start:stop, :]
            cosines = features @ like(batch, self._prototypes).T
            for row, k in self._taught(clip, fresh[(fresh >= start) & (fresh < stop)]):
                # What is learned of a row holds for itself and for all after it.
                later = slice(row - start, None)
                cosines[later, k] = features[later, :] @ like(batch, self._prototypes[k])
            clip.logits[start:stop, :] += self.logit_scale * cosines
        self._count(ids[fresh])
        return clip.logits

    def _logits(self, batch: Batch) -> Array:
        features, logits = self._clip_logits(batch)
        return logits + self.logit_scale * (features @ like(batch, self._prototypes).T)

    def _learn(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        for _ in self._taught(clip, rows):
            pass
        self._count(ids[rows])

    def _taught(self, clip: ClipScores, rows: np.ndarray) -> Iterator[tuple[int, int]]:
        """Learn from some rows in turn; says which class has just learned from which."""
        chances = to_host(clip.probs[rows, :])  # type: ignore[index]
        features = to_host(clip.features[rows, :]).astype(np.float64)
        for at, k in np.argwhere(chances >= self.threshold).tolist():
            share = -np.expm1(-float(chances[at, k]) / self.time_constant)
            self._averages[k] += share * (features[at] - self._averages[k])
            moved = self.memory * self._prototypes[k] + (1.0 - self.memory) * self._averages[k]
            self._prototypes[k] = moved / max(float(np.linalg.norm(moved)), 1e-12)
            yield int(rows[at]), k
