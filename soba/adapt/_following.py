"""What OGA and ADAPT share: class means that follow every sample, a covariance that waits.

In the official code of both a sample is in the statistics that it is scored with, which matters
where classes have few samples. The mean of one class is made anew in O(d^2); a covariance and its
inverse take O(d^3), so they refresh on a schedule.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import numpy as np

from soba.adapt._absorbing import Arrival
from soba.adapt._arrays import Array, Batch
from soba.adapt.queue_adapter import PrototypeAdapter


class FollowingAdapter(PrototypeAdapter):
    """A queue, Gaussian scores of it (`discriminant`), and means that follow what enters."""

    def _reset(self) -> None:
        super()._reset()
        self._copied = (self.statistics_, -1, self.statistics_)  # what, when, and the copy

    def _adapt(self, batch: Batch, ids: np.ndarray | None) -> Array:
        clip = self._clip(batch)
        ids, fresh = self._seen.number(ids, len(batch))
        scored = 0
        for row in fresh:
            label = int(clip.labels[row])
            before = self.queue.ids[label, : self.queue.sizes[label]].copy()
            self._learn(clip, ids, row[None])
            due = self.n_seen == self._due
            if due or not np.array_equal(before, self.queue.ids[label, : self.queue.sizes[label]]):
                # Rows before this one are scored with what was known, this one with what is now.
                self._add_scores(batch, clip, scored, int(row))
                scored = int(row)
                if due:
                    self._settle()
                elif self.statistics_ is not None:
                    self._follow(label)
        self._add_scores(batch, clip, scored, len(batch))
        return clip.logits

    def _take_in(self, arrival: Arrival, rows: np.ndarray, last: int) -> None:
        follows = arrival.refreshes and self.n_seen >= last and self.statistics_ is not None
        labels = np.unique(arrival.carried.labels[rows] if follows else rows[:0])
        before = [self.queue.ids[label, : self.queue.sizes[label]].copy() for label in labels]
        super()._take_in(arrival, rows, last)
        for label, ids in zip(labels, before, strict=True):
            if not np.array_equal(ids, self.queue.ids[label, : self.queue.sizes[label]]):
                self._follow(int(label))

    def _view(self) -> Self:
        with self._lock:
            view = super()._view()
            known, count, copies = self._copied
            if known is not self.statistics_ or count != self.n_seen:  # rows change in place
                copies = self.statistics_ and {k: v.copy() for k, v in self.statistics_.items()}
                self._copied = (self.statistics_, self.n_seen, copies)
            view.statistics_ = copies
        return view

    @abstractmethod
    def _follow(self, label: int) -> None:
        """Bring the mean of one class up to its samples; the covariance waits for the refresh."""

    def _move(self, label: int, mean: np.ndarray) -> None:
        """Score a class by another mean."""
        assert self.statistics_ is not None
        known = self.statistics_
        shifted = mean - known["centre"]
        known["weights"][label] = known["precision"] @ shifted
        known["offsets"][label] = -0.5 * (known["weights"][label] @ shifted)
