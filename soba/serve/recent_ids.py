"""The ids that a stream has learned last, in their order: older ones may be forgotten."""

from __future__ import annotations

import numpy as np

_ROOM = 1024


class RecentIds:
    """At least the last `remember` ids; 8 bytes each.

    >>> recent = RecentIds(remember=8)
    >>> recent.add(np.arange(8)), recent.add(np.array([8]))
    (array([], dtype=int64), array([], dtype=int64))
    >>> recent.add(np.array([9])), recent.ids()
    (array([0, 1]), array([2, 3, 4, 5, 6, 7, 8, 9]))
    """

    def __init__(self, remember: int, ids: np.ndarray | None = None) -> None:
        self.remember = remember
        self._room = np.array(np.empty(0) if ids is None else ids, np.int64)
        self._size = len(self._room)

    def ids(self) -> np.ndarray:
        """In the order they came, oldest first."""
        return self._room[: self._size].copy()

    def add(self, ids: np.ndarray) -> np.ndarray:
        """Add the newest; those that are to be forgotten, many at a time or none."""
        needed = self._size + len(ids)
        if needed > len(self._room):
            # Twice the size, as long as that is not more than will ever be needed.
            roomy = max(needed, min(2 * needed + _ROOM, self.most))
            room = np.empty(roomy, np.int64)
            room[: self._size] = self._room[: self._size]
            self._room = room
        self._room[self._size : needed] = ids
        self._size = needed
        if needed <= self.most:
            return np.empty(0, np.int64)
        old = self._room[: needed - self.remember].copy()
        self._room[: self.remember] = self._room[needed - self.remember : needed].copy()
        self._size = self.remember
        return old

    @property
    def most(self) -> int:
        """So many are held at most; forgetting one by one would cost more than it frees."""
        return self.remember + max(1, self.remember // 8)
