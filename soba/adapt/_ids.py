"""Which samples were learned from: given ids as a set that stays small, the others as a count.

Runs of consecutive ids are kept as intervals: shards that number their samples cost one interval
each, however long they are; ids drawn at random cost 16 bytes each, the price of knowing for
certain that a sample was seen before, and up to 8 more where there are many.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_PENDING = 4096  # isolated ids are gathered and merged so many at a time
_MOST_IDS = 1 << 31  # of one call: more are a mistake
_FALL = 4  # each level of the set has more intervals than so many times the next
_LARGE = 1 << 16  # edges: a level that does not stay in the cache
_ODD = np.uint64(0x9E3779B97F4A7C15)  # spreads ids over the slots of a table


class IdSet:
    """Exact set of int64 ids with bulk membership, insertion and union.

    Intervals lie in levels, each sorted and several times as large as the next. What is added makes
    a new level, which joins those before it that it has nearly caught up with. So an id is moved,
    and looked for, O(log n) times, however scattered the ids are.

    >>> ids = IdSet()
    >>> ids.add(np.arange(1000))
    >>> ids.contains(np.array([0, 999, 1000])).tolist()
    [True, True, False]
    >>> len(ids), ids.intervals().tolist()
    (1000, [[0, 1000]])
    """

    def __init__(self, intervals: np.ndarray | None = None) -> None:
        self._levels: list[_Level] = []
        self._pending: set[int] = set()
        self._size = 0
        if intervals is not None and len(intervals):
            self._levels.append(_Level(np.array(intervals, np.int64).reshape(-1)))
            self._size = int((intervals[:, 1] - intervals[:, 0]).sum())

    def __len__(self) -> int:
        return self._size

    def contains(self, ids: np.ndarray) -> np.ndarray:
        """(n,) ids -> (n,) bool."""
        if len(ids) == 1 and int(ids[0]) in self._pending:
            return np.ones(1, bool)
        if len(ids) > 1:
            self._settle()
        inside = np.zeros(len(ids), bool)
        order = np.argsort(ids)  # neighbours are looked for in the same part of memory
        ascending = ids[order]
        for level in self._levels:
            inside[order] |= level.contains(ascending)
        return inside

    def add(self, ids: np.ndarray) -> None:
        """Add ids that are not in the set yet and do not repeat."""
        if len(ids) == 0:
            return
        self._size += len(ids)
        first, last = int(ids[0]), int(ids[-1])
        ascending = last - first + 1 == len(ids) and bool((ids[1:] - ids[:-1] == 1).all())
        if ascending and self._levels and self._levels[-1].extended(first, last + 1):
            return  # a running count: one interval grows
        if len(ids) > 1:
            self._push(ids)
            return
        self._pending.add(first)
        if len(self._pending) >= _PENDING:
            self._settle()

    def remove(self, ids: np.ndarray) -> None:
        """Take ids out that are in the set and do not repeat; O(n), so many at a time."""
        starts, ends = self.intervals().T
        # An id ends an interval and begins the next; those that are left empty go.
        starts = np.sort(np.concatenate([starts, ids + 1]))
        ends = np.sort(np.concatenate([ends, ids]))
        left = np.stack([starts, ends], axis=1)[starts < ends].reshape(-1)
        self._levels = [_Level(left)] if len(left) else []
        self._size -= len(ids)

    def union(self, other: IdSet) -> IdSet:
        """The ids of either set."""
        both = [ids.intervals().reshape(-1) for ids in (self, other)]
        return IdSet(_join(both).reshape(-1, 2))

    def intervals(self) -> np.ndarray:
        """(m, 2) int64, the canonical form: two equal sets have equal intervals."""
        self._settle()
        if len(self._levels) > 1:
            self._levels = [_Level(_join([level.edges for level in self._levels]))]
        edges = [level.edges for level in self._levels]
        return np.concatenate([np.empty(0, np.int64), *edges]).reshape(-1, 2)

    def largest(self, most: int) -> np.ndarray:
        """The largest ids, so many at the most, ascending; O(intervals + most).

        >>> IdSet(np.array([[0, 1 << 60], [1 << 61, (1 << 61) + 1]])).largest(2) - (1 << 60)
        array([                 -1, 1152921504606846976])
        """
        starts, ends = self.intervals().T
        sizes = ends - starts
        larger = np.cumsum(sizes[::-1])[::-1] - sizes  # ids in the intervals above
        wanted = np.clip(most - larger, 0, sizes)
        return unpacked(np.stack([ends - wanted, wanted], axis=1)[wanted > 0])

    def copy(self) -> IdSet:
        return IdSet(self.intervals())

    def _settle(self) -> None:
        """Make a level of the ids that came one by one."""
        if self._pending:
            pending = np.fromiter(self._pending, np.int64, len(self._pending))
            self._pending = set()
            self._push(pending)

    def _push(self, ids: np.ndarray) -> None:
        edges = [np.stack([ids, ids + 1], axis=1).reshape(-1)]
        # All that are to be joined are joined at once: the smallest levels would be moved often.
        size = len(edges[0])
        while self._levels and len(self._levels[-1].edges) <= _FALL * size:
            edges.append(self._levels.pop().edges)
            size += len(edges[-1])
        self._levels.append(_Level(_join(edges[::-1])))


class _Level:
    """Edges (2 m,): start, end, start, end, ... of half-open intervals.

    They are sorted, disjoint and do not touch. The largest int64 cannot be such an end, so
    `read_ids` refuses it. A search among many edges waits for memory at every step; where all ids
    are isolated a table of their hashes, 4 to 8 bytes an id, tells at once that most are not there.
    """

    def __init__(self, edges: np.ndarray) -> None:
        self.edges, self._table = edges, np.empty(0, bool)
        if len(edges) >= _LARGE and bool((edges[1::2] - edges[::2] == 1).all()):
            self._shift = np.uint64(63 - len(edges).bit_length())
            self._table = np.zeros(1 << (len(edges).bit_length() + 1), bool)
            self._table[self._slots(edges[::2])] = True

    def contains(self, ids: np.ndarray) -> np.ndarray:
        """(n,) ascending ids -> (n,) bool."""
        if len(self._table) == 0:
            return self._search(ids)
        inside: np.ndarray = self._table[self._slots(ids)]
        likely = np.flatnonzero(inside)
        inside[likely] = self._search(ids[likely])
        return inside

    def extended(self, start: int, end: int) -> bool:
        """Add an interval if it continues the last one; say whether it does."""
        continues = len(self._table) == 0 and bool(self.edges[-1] == start)
        if continues:
            self.edges[-1] = end
        return continues

    def _search(self, ids: np.ndarray) -> np.ndarray:
        # Past a start and not past its end: an odd number of edges.
        inside: np.ndarray = (self.edges.searchsorted(ids, side="right") & 1).astype(bool)
        return inside

    def _slots(self, ids: np.ndarray) -> np.ndarray:
        slots: np.ndarray = (ids.astype(np.uint64) * _ODD) >> self._shift
        return slots


class SeenIds:
    """The samples of a stream: those that came with ids, and those that it numbered itself.

    Given ids are 0 or more, and the running count goes -1, -2, ..., so the two never collide.
    `space` says what the ids are counted in, since the same number means another sample
    elsewhere: "count", or what the given ids are called ("given" unless told otherwise).
    Its length is the number of samples: ids that were forgotten count, and are new again.

    >>> seen = SeenIds()
    >>> seen.number(None, 3)[0].tolist()
    [-1, -2, -3]
    >>> seen.add(seen.number(None, 3)[0])
    >>> len(seen), seen.space
    (3, 'count')
    """

    def __init__(self, given_space: str | None = None) -> None:
        self.given, self.counted = IdSet(), 0
        self.forgotten = 0  # given ids that are not known any more
        self.given_space = given_space  # as it was called; None: by nobody yet

    def __len__(self) -> int:
        return len(self.given) + self.counted + self.forgotten

    @property
    def space(self) -> str | None:
        """None while there is nothing in it and nobody has named one."""
        if self.counted:
            return "count"
        return (self.given_space or "given") if len(self) else self.given_space

    def call_given(self, space: str) -> None:
        """Say what space the given ids are of."""
        if not isinstance(space, str) or not space or space == "count":
            raise ValueError(f"an id space needs a name of its own, not {space!r}")
        known = self.given_space or "given"
        if len(self) > self.counted and space != known:
            raise ValueError(f"the ids learned so far are of space {known}, not {space}")
        self.given_space = space

    def check_space(self, space: str) -> None:
        """Raise if ids of this space do not mix with those that are known."""
        if self.space not in (None, space):
            raise ValueError(f"ids of different spaces do not mix: {self.space} and {space}")

    def number(self, ids: np.ndarray | None, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of n samples, and the rows among them that were not seen before."""
        if ids is None:
            return -1 - np.arange(self.counted, self.counted + n), np.arange(n)
        return ids, np.flatnonzero(~self.given.contains(ids))

    def add(self, ids: np.ndarray) -> None:
        """Add ids that `number` gave, all given or all counted, and none known."""
        if len(ids) and ids[0] < 0:
            self.counted += len(ids)
        else:
            self.given.add(ids)

    def unknown(self, ids: np.ndarray) -> np.ndarray:
        """(n,) ids, all given or all counted -> (n,) bool: which were not seen before."""
        if len(ids) and ids[0] < 0:
            return -ids > self.counted
        return ~self.given.contains(ids)

    def forget(self, ids: np.ndarray) -> None:
        """Know some given ids no longer; they stay counted."""
        known = ids[self.given.contains(ids)]
        if len(known):
            self.given.remove(known)
            self.forgotten += len(known)

    def keep(self, ids: np.ndarray) -> None:
        """Know no other given ids than these, which are known; the others stay counted."""
        self.forgotten += len(self.given) - len(ids)
        self.given = IdSet()
        self.given.add(ids)

    def union(self, other: SeenIds) -> SeenIds:
        """The samples of either stream, if their ids are of one space.

        What both have forgotten cannot be told apart, so that the larger number of the two counts:
        a merge with itself, or once more, changes nothing.
        """
        if self.counted and other.counted:
            raise ValueError(
                "both adapters numbered their samples themselves, so that one number names two "
                "samples: give each shard ids of its own, adapt(..., ids=...)"
            )
        spaces = sorted({space for space in (self.space, other.space) if space is not None})
        if len(spaces) > 1:
            raise ValueError(f"ids of different spaces do not mix: {' and '.join(spaces)}")
        both = SeenIds(self.given_space or other.given_space)
        both.given = self.given.union(other.given)
        both.counted = self.counted + other.counted
        both.forgotten = max(self.forgotten, other.forgotten)
        return both

    def copy(self) -> SeenIds:
        twin = SeenIds(self.given_space)
        twin.given, twin.counted = self.given.copy(), self.counted
        twin.forgotten = self.forgotten
        return twin

    def knows(self, ids: np.ndarray) -> bool:
        """Whether all of some ids, given or counted, are in it."""
        given = ids >= 0
        return bool(self.given.contains(ids[given]).all() and (-ids[~given] <= self.counted).all())

    def arrays(self) -> dict[str, np.ndarray]:
        return {"seen": self.given.intervals()}

    def meta(self) -> dict[str, Any]:
        meta = {"counted": self.counted, "given_space": self.given_space}
        return meta | ({"forgotten": self.forgotten} if self.forgotten else {})

    @classmethod
    def restored(cls, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> SeenIds:
        """What `arrays` and `meta` told of; a file may hold anything."""
        seen, intervals, counted = cls(), arrays["seen"], meta["counted"]
        forgotten = meta.get("forgotten", 0)
        edges = intervals.reshape(-1)
        if intervals.ndim != 2 or intervals.shape[1] != 2 or intervals.dtype != np.int64:
            raise ValueError("the known ids are not stored as pairs of int64")
        if len(edges) and (edges[0] < 0 or not (edges[1:] > edges[:-1]).all()):
            raise ValueError("the known ids are not stored as ascending intervals")
        for name, number in (("counted", counted), ("forgotten", forgotten)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ValueError(f"{name} must be a whole number, not {number!r}")
        if meta["given_space"] is not None:
            seen.call_given(meta["given_space"])
        seen.given, seen.counted = IdSet(np.array(intervals)), counted
        seen.forgotten = forgotten
        return seen


def packed(ids: np.ndarray) -> np.ndarray:
    """Ids in their order, as (r, 2) runs, the first id and how many, where that is shorter.

    Given ids run upwards, counted ones downwards.

    >>> packed(np.array([7, 8, 9, 10, 3])).tolist(), packed(np.array([7, 3])).tolist()
    ([[7, 4], [3, 1]], [7, 3])
    """
    step = -1 if len(ids) and ids[0] < 0 else 1
    first = np.flatnonzero(np.concatenate([[True], np.diff(ids) != step])[: len(ids)])
    if 2 * len(first) >= len(ids):
        return ids
    return np.stack([ids[first], np.diff(np.append(first, len(ids)))], axis=1)


def unpacked(stored: np.ndarray) -> np.ndarray:
    """What was packed; bytes of any origin may claim anything."""
    if stored.ndim == 1 and stored.dtype == np.int64:
        return stored
    if stored.ndim != 2 or stored.shape[1] != 2 or stored.dtype != np.int64:
        raise ValueError(f"ids are {stored.dtype} of shape {stored.shape}")
    starts, sizes = stored.T
    if len(sizes) and not (sizes.min() >= 1 and float(sizes.sum(dtype=float)) <= _MOST_IDS):
        raise ValueError("the runs of ids are empty or endless")
    steps = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ids: np.ndarray = np.repeat(starts, sizes) + np.where(starts < 0, -1, 1).repeat(sizes) * steps
    return ids


def _join(levels: list[np.ndarray]) -> np.ndarray:
    """Intervals of several levels as one level: sorted, those that touch or overlap joined.

    Starts and ends are sorted each for itself: before the i-th start i intervals have begun, and
    there is a gap if as many have ended.
    """
    starts, ends = (
        np.sort(np.concatenate([level[edge::2] for level in levels]), kind="stable")
        for edge in (0, 1)
    )
    if len(starts) == 0:
        return starts
    gaps = starts[1:] > ends[:-1]
    joined = starts[np.append(True, gaps)], ends[np.append(gaps, True)]
    return np.stack(joined, axis=1).reshape(-1)
