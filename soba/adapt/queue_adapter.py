"""What the methods with one queue share: statistics of it that refresh on a schedule."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from soba.adapt._absorbing import Arrival
from soba.adapt._arrays import Array, Batch, ClipScores, distances
from soba.adapt._schedule import Pace, Refresh, Schedule
from soba.adapt.queue import EntropyQueue
from soba.adapt.stream import TWIN_TOLERANCE, StreamAdapter

_COOL = np.ones(1)  # the temperature of methods that have none


class PrototypeAdapter(StreamAdapter):
    """One queue, and statistics of it that refresh on a schedule: NCM, SOBA and their kin.

    `statistics_` is a pure function of the queue at the last refresh: name -> array; None
    before the first one and while the queue holds too little, and then the answer is CLIP's.
    """

    capacity: int | None
    refresh_rule: Refresh
    total: int | None
    max_gap: int | None

    @property
    def queue(self) -> EntropyQueue:
        return self._queues["queue"]

    @property
    def _growth(self) -> dict[str, int | None]:
        """What of the schedule is not the usual: `first`, `percent`, `max_gap`."""
        return {}

    def _empty_queues(self) -> dict[str, EntropyQueue]:
        queue = EntropyQueue(self.n_classes, self.dim, self.capacity, twin_tolerance=TWIN_TOLERANCE)
        return {"queue": queue}

    def _reset(self) -> None:
        super()._reset()
        self._schedule = Schedule(
            self.refresh_rule,
            classes=self.n_classes,
            total=self.total,
            **{"max_gap": self.max_gap} | self._growth,
        )
        self._reschedule()
        self.statistics_: dict[str, np.ndarray] | None = None

    def _adapt(self, batch: Batch, ids: np.ndarray | None) -> Array:
        clip = self._clip(batch)
        ids, fresh = self._seen.number(ids, len(batch))
        scored = learned = 0  # rows scored so far, and new rows learned so far
        known = self.n_seen
        for due in self._pace().refreshes(clip.labels[fresh]):
            # The refresh falls on a row of this batch: that row is scored after it.
            reach = due - known
            boundary = int(fresh[reach - 1])
            self._learn(clip, ids, fresh[learned:reach])  # first: scoring overwrites CLIP's logits
            self._add_scores(batch, clip, scored, boundary)
            self._settle()
            # A refresh leaves nothing of text and prototypes in the caches: the row that waits for
            # it waits for them as well, and not the next one, which wants an answer at once.
            self._logits(Batch(batch.xp, batch.x[boundary : boundary + 1, ...], False))
            scored, learned = boundary, reach
        self._learn(clip, ids, fresh[learned:])
        self._add_scores(batch, clip, scored, len(batch))
        return clip.logits

    def _logits(self, batch: Batch) -> Array:
        features, logits = self._clip_logits(batch)
        nothing = np.empty(0)
        clip = ClipScores(features, logits, nothing, nothing, nothing, None)
        self._add_scores(batch, clip, 0, len(batch))
        return clip.logits

    def _learn(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        if len(rows):
            self._offer("queue", clip, ids, rows)
            self._count(ids[rows])

    def _absorb(self, new: list[Arrival]) -> None:
        # Statistics depend on what is kept and on nothing before: the last refresh makes them.
        due = self._refreshes_in(new)
        last = due[-1] if due else 0
        for arrival in new:
            for rows in arrival.pieces:
                while due and due[0] - self.n_seen <= len(rows):
                    reach = due.pop(0) - self.n_seen
                    self._take_in(arrival, rows[:reach], last)
                    if self.n_seen == last:
                        self._settle()
                    rows = rows[reach:]
                self._take_in(arrival, rows, last)
            if not arrival.refreshes:
                self._reschedule()

    def _take_in(self, arrival: Arrival, rows: np.ndarray, last: int) -> None:
        """Learn some rows of a delta; the last refresh on the way is after sample `last`."""
        self._learn(arrival.carried, arrival.ids, rows)

    def _refreshes_in(self, new: list[Arrival]) -> list[int]:
        """The numbers of the samples of some deltas after which statistics refresh."""
        numbers: list[int] = []
        pace = self._pace()
        for arrival in new:
            start, labels = pace.seen, arrival.labels
            due = pace.refreshes(labels) if arrival.refreshes else []
            pace.learn(labels[pace.seen - start :])
            numbers += due
        return numbers

    def _settle(self) -> None:
        """Refresh the statistics now."""
        statistics = self._statistics()
        # In one memory layout, as a state file gives it back: products round by layout.
        self.statistics_ = statistics and {
            name: np.ascontiguousarray(array) for name, array in statistics.items()
        }
        self._reschedule()

    def _pace(self) -> Pace:
        """When statistics refresh from here on."""
        return Pace(self._schedule, self.n_seen, self._due)

    def _reschedule(self) -> None:
        self._due = self._schedule.next_after(self.n_seen)

    def _take_over(self, other: Self) -> None:
        super()._take_over(other)
        if other.statistics_ is None:  # no refresh yet, or too little: the schedule decides
            self.statistics_ = None

    def _add_scores(self, batch: Batch, clip: ClipScores, start: int, stop: int) -> None:
        """Add the adapter's logits to CLIP's for some rows, a block at a time."""
        if self.statistics_ is None or start >= stop:
            return
        step = max(64, (1 << 20) // self.n_classes)
        temperature = float(self.statistics_.get("temperature", _COOL)[0])
        for at in range(start, stop, step):
            end = min(at + step, stop)
            block = clip.logits[at:end, :]
            block += self._score(batch, clip.features[at:end, :])
            if temperature != 1.0:
                block /= temperature

    @abstractmethod
    def _statistics(self) -> dict[str, np.ndarray] | None:
        """What scoring needs, from the queue alone; None where it holds too little."""

    @abstractmethod
    def _score(self, batch: Batch, features: Array) -> Array:
        """(m, d) features -> (m, C) adapter logits under `statistics_`."""

    def _statistic(self, name: str, batch: Batch) -> Array:
        assert self.statistics_ is not None
        return self._mirror(name, self.statistics_[name], batch)

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

    def _arrays(self) -> dict[str, np.ndarray]:
        statistics = self.statistics_ or {}
        return super()._arrays() | {f"statistics.{k}": v for k, v in statistics.items()}

    def _meta(self) -> dict[str, Any]:
        return super()._meta() | {"statistics": sorted(self.statistics_ or {})}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        super()._restore(arrays, meta)
        names = meta["statistics"]
        self.statistics_ = {name: arrays[f"statistics.{name}"] for name in names} or None
        self._reschedule()
