"""A set of sample ids that stays small: runs of consecutive ids are kept as intervals.

A stream that numbers its samples 0, 1, 2, ... costs one interval however long it is; ids drawn
at random cost 16 bytes each, the price of knowing for certain that a sample was seen before.
"""

from __future__ import annotations

import numpy as np

_PENDING = 4096  # isolated ids are gathered and merged so many at a time


class IdSet:
    """Exact set of int64 ids with bulk membership, insertion and union.

    >>> ids = IdSet()
    >>> ids.add(np.arange(1000))
    >>> ids.contains(np.array([0, 999, 1000])).tolist()
    [True, True, False]
    >>> len(ids), ids.intervals().tolist()
    (1000, [[0, 1000]])
    """

    def __init__(self, intervals: np.ndarray | None = None) -> None:
        # (m, 2) half-open intervals, sorted, disjoint, not touching. The largest int64 cannot be
        # the end of a half-open interval, so `check_ids` refuses it.
        self._intervals = np.empty((0, 2), np.int64) if intervals is None else intervals
        self._pending: set[int] = set()
        self._size = int((self._intervals[:, 1] - self._intervals[:, 0]).sum())
        self._largest = int(self._intervals[-1, 1]) - 1 if len(self._intervals) else -1

    def __len__(self) -> int:
        return self._size

    @property
    def next_free(self) -> int:
        """One past the largest id, or 0: where a running count can go on without collision."""
        return max(self._largest + 1, 0)

    def contains(self, ids: np.ndarray) -> np.ndarray:
        """(n,) ids -> (n,) bool."""
        if len(ids) == 1 and int(ids[0]) in self._pending:
            return np.ones(1, bool)
        if len(ids) > 1:
            self._settle()
        if len(self._intervals) == 0:
            return np.zeros(len(ids), bool)
        where = self._intervals[:, 0].searchsorted(ids, side="right") - 1
        inside: np.ndarray = (where >= 0) & (ids < self._intervals[where, 1])
        return inside

    def add(self, ids: np.ndarray) -> None:
        """Add ids that are not in the set yet and do not repeat."""
        if len(ids) == 0:
            return
        self._size += len(ids)
        self._largest = max(self._largest, int(ids.max()))
        first, last = int(ids[0]), int(ids[-1])
        ascending = last - first + 1 == len(ids) and bool((ids[1:] - ids[:-1] == 1).all())
        if ascending and len(self._intervals) and self._intervals[-1, 1] == first:
            self._intervals[-1, 1] = last + 1  # a running count: one interval grows
            return
        if len(ids) == 1:
            self._pending.add(first)
            if len(self._pending) < _PENDING:
                return
            ids = np.empty(0, np.int64)
        self._settle(ids)

    def union(self, other: IdSet) -> IdSet:
        """The ids of either set."""
        return IdSet(_join(np.concatenate([self.intervals(), other.intervals()])))

    def intervals(self) -> np.ndarray:
        """(m, 2) int64, the canonical form: two equal sets have equal intervals."""
        self._settle()
        return self._intervals

    def copy(self) -> IdSet:
        return IdSet(self.intervals().copy())

    def _settle(self, ids: np.ndarray | None = None) -> None:
        if not self._pending and (ids is None or len(ids) == 0):
            return
        pending = np.fromiter(self._pending, np.int64, len(self._pending))
        starts = pending if ids is None else np.concatenate([pending, ids])
        runs = np.stack([starts, starts + 1], axis=1)
        self._intervals = _join(np.concatenate([self._intervals, runs]))
        self._pending = set()


def _join(intervals: np.ndarray) -> np.ndarray:
    """Sort intervals and join those that touch or overlap."""
    if len(intervals) == 0:
        return intervals
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    opens = np.concatenate([[True], intervals[1:, 0] > reach[:-1]])
    last = np.concatenate([opens[1:], [True]])
    return np.stack([intervals[opens, 0], reach[last]], axis=1)
