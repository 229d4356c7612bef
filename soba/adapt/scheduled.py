"""What the methods share whose statistics of what is kept refresh on a schedule."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from soba.adapt._absorbing import Arrival
from soba.adapt._arrays import Array, Batch, ClipScores
from soba.adapt._schedule import Refresh, Schedule
from soba.adapt.stream import StreamAdapter

_BLOCK_LOGITS = 1 << 20  # scored at a time


class ScheduledAdapter(StreamAdapter):
    """Statistics of the samples that are kept, made anew on a schedule.

    `statistics_` is a pure function of what was kept at the last refresh: name -> array; None
    before the first one and while too little is kept, and then the answer is CLIP's.
    """

    refresh_rule: Refresh
    total: int | None
    max_gap: int | None

    @property
    def _growth(self) -> dict[str, int | None]:
        """What of the schedule is not the usual: `first`, `percent`, `max_gap`."""
        return {}

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
        while self._due is not None and (reach := self._due - known) <= len(fresh):
            # The refresh falls on a row of this batch: that row is scored after it.
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
        clip = self._clip_to_score(batch)
        self._add_scores(batch, clip, 0, len(batch))
        return clip.logits

    def _clip_to_score(self, batch: Batch) -> ClipScores:
        """What scoring needs of CLIP: features and logits, without the cost of entropies."""
        nothing = np.empty(0)
        return ClipScores(*self._clip_logits(batch), nothing, nothing, nothing, None)

    def _absorb(self, new: list[Arrival]) -> None:
        # Statistics depend on what is kept and on nothing before: the last refresh makes them.
        last = self._last_refresh(new)
        for arrival in new:
            self._see(arrival)
            for rows in arrival.pieces:
                reach = last - self.n_seen
                if 0 < reach <= len(rows):
                    self._take_in(arrival, rows[:reach], last)
                    self._settle()
                    rows = rows[reach:]
                if len(rows):
                    self._take_in(arrival, rows, last)
        self._reschedule()

    def _take_in(self, arrival: Arrival, rows: np.ndarray, last: int) -> None:
        """Learn some rows of a delta; the last refresh on the way is after sample `last`."""
        self._learn(arrival.carried, arrival.ids, rows)

    def _last_refresh(self, new: list[Arrival]) -> int:
        """The number of the sample of some deltas behind which statistics refresh last; or 0."""
        last, seen = 0, self.n_seen
        for arrival in new:
            if arrival.refreshes:
                last = self._schedule.last_between(seen, seen + len(arrival)) or last
            seen += len(arrival)
        return last

    def _settle(self) -> None:
        """Refresh the statistics now."""
        statistics = self._statistics()
        # In one memory layout, as a state file gives it back: products round by layout.
        self.statistics_ = statistics and {
            name: np.ascontiguousarray(array) for name, array in statistics.items()
        }
        self._reschedule()

    def _reschedule(self) -> None:
        self._due = self._schedule.next_after(self.n_seen)

    def _take_over(self, other: Self) -> None:
        super()._take_over(other)
        if other.statistics_ is None:  # no refresh yet, or too little: the schedule decides
            self.statistics_ = None

    def _add_scores(self, batch: Batch, clip: ClipScores, start: int, stop: int) -> None:
        """Turn CLIP's logits into the adapter's for some rows, a block at a time."""
        if self.statistics_ is None or start >= stop:
            return
        step = max(64, _BLOCK_LOGITS // self.n_classes)
        for at in range(start, stop, step):
            self._add_block(batch, clip, slice(at, min(at + step, stop)))

    @abstractmethod
    def _statistics(self) -> dict[str, np.ndarray] | None:
        """What scoring needs, from what is kept alone; None where that is too little."""

    @abstractmethod
    def _add_block(self, batch: Batch, clip: ClipScores, rows: slice) -> None:
        """Turn some rows of `clip.logits` into the adapter's, in place, by `statistics_`."""

    def _statistic(self, name: str, batch: Batch) -> Array:
        assert self.statistics_ is not None
        return self._mirror(name, self.statistics_[name], batch)

    def _arrays(self) -> dict[str, np.ndarray]:
        statistics = self.statistics_ or {}
        return super()._arrays() | {f"statistics.{k}": v for k, v in statistics.items()}

    def _meta(self) -> dict[str, Any]:
        return super()._meta() | {"statistics": sorted(self.statistics_ or {})}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        super()._restore(arrays, meta)
        names = meta["statistics"]
        if names is None:  # they were made by other formulas: anew, of what is kept
            self._settle()
            return
        self.statistics_ = {name: arrays[f"statistics.{name}"] for name in names} or None
        self._reschedule()
