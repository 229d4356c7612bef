"""What the methods with one queue share: prototypes of it that refresh on a schedule."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from soba.adapt._arrays import Array, Batch, ClipScores, distances
from soba.adapt.queue import EntropyQueue
from soba.adapt.scheduled import ScheduledAdapter
from soba.adapt.stream import TWIN_TOLERANCE


class PrototypeAdapter(ScheduledAdapter):
    """One queue, and prototypes made of it: NCM, SOBA and their kin."""

    capacity: int | None

    @property
    def queue(self) -> EntropyQueue:
        return self._queues["queue"]

    def _empty_queues(self) -> dict[str, EntropyQueue]:
        queue = EntropyQueue(self.n_classes, self.dim, self.capacity, twin_tolerance=TWIN_TOLERANCE)
        return {"queue": queue}

    def _learn(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        if len(rows):
            self._offer("queue", clip, ids, rows)
            self._count(ids[rows])

    def _add_block(self, batch: Batch, clip: ClipScores, rows: slice) -> None:
        block = clip.logits[rows, :]
        block += self._score(batch, clip.features[rows, :])

    @abstractmethod
    def _score(self, batch: Batch, features: Array) -> Array:
        """(m, d) features -> (m, C) adapter logits under `statistics_`."""

    def _spread(self, seen: np.ndarray, prototypes: np.ndarray) -> dict[str, np.ndarray]:
        """Prototypes of the seen classes, laid out for all of them.

        A class without samples gets the mean of the others' logits; under a linear score that is
        the score of their mean prototype.
        """
        spread = np.empty((self.n_classes, self.dim), np.float32)
        spread[:] = prototypes.mean(axis=0)
        spread[seen] = prototypes
        mask = np.zeros(self.n_classes, bool)
        mask[seen] = True
        return {"prototypes": spread, "seen": mask}

    def _linear(self, batch: Batch, query: Array) -> Array:
        """<query, prototype> of every class."""
        return query @ self._statistic("prototypes", batch).T

    def _nearness(self, batch: Batch, query: Array, metric: str) -> Array:
        """Minus the distance to every prototype, unseen classes at the mean of the seen."""
        scores = -distances(batch, query, self._statistic("prototypes", batch), metric)
        seen = self._statistic("seen", batch)
        scores[:, ~seen] = batch.xp.mean(scores[:, seen], axis=-1, keepdims=True)
        return scores
