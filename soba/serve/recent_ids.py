"""The ids that a stream has learned last, in their order: older ones may be forgotten.

Beside each id lies the digest of its sample's content, so that another sample cannot come under it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from soba.serve.digests import DIGEST

KNOWN = np.dtype([("id", "<i8"), ("digest", DIGEST)])
NONE = np.empty(0, KNOWN)
_ROOM = 1024
_SLOTS = 1 << 16


def known(ids: np.ndarray, digests: np.ndarray | int = 0) -> np.ndarray:
    """(n,) records of ids and digests; 0 where there is none."""
    records = np.empty(len(ids), KNOWN)
    records["id"], records["digest"] = ids, digests
    return records


def last_of_each(records: np.ndarray) -> np.ndarray:
    """The records without those whose id comes again later.

    Examples
    --------
    >>> last_of_each(known(np.array([7, 3, 7]), np.array([1, 2, 4], DIGEST))).tolist()
    [(3, 2), (7, 4)]
    """
    backwards = records[::-1]
    rows = np.unique(backwards["id"], return_index=True)[1]
    return backwards[np.sort(rows)][::-1]


def digests_of(records: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(n,) the digests of ids; 0 for those that are not among the records.

    The records are in the order they came, so all are looked at: milliseconds for a million, and
    only where ids come again. A table of what is looked for passes over most of them.
    """
    wanted = np.zeros(_SLOTS, bool)
    wanted[ids % _SLOTS] = True
    likely = np.flatnonzero(wanted[records["id"] % _SLOTS])
    likely = likely[np.argsort(records["id"][likely])]
    places = np.searchsorted(records["id"][likely], ids)
    digests = np.zeros(len(ids), DIGEST)
    rows = np.flatnonzero(places < len(likely))
    matches = records[likely[places[rows]]]
    same = matches["id"] == ids[rows]
    digests[rows[same]] = matches["digest"][same]
    return digests


class RecentIds:
    """At least the last `remember` ids; 16 bytes each.

    Examples
    --------
    >>> recent = RecentIds(remember=8)
    >>> len(recent.add(known(np.arange(8)))), len(recent.add(known(np.array([8]))))
    (0, 0)
    >>> recent.add(known(np.array([9])))["id"], recent.records()["id"]
    (array([0, 1]), array([2, 3, 4, 5, 6, 7, 8, 9]))
    """

    def __init__(self, remember: int, records: np.ndarray = NONE) -> None:
        self.remember = remember
        self._room = np.array(records)
        self._size = len(self._room)

    def records(self) -> np.ndarray:
        """In the order they came, oldest first; to be read before more are added."""
        return self._room[: self._size]

    def add(self, records: np.ndarray) -> np.ndarray:
        """Add the newest; those that are to be forgotten, many at a time or none."""
        needed = self._size + len(records)
        if needed > len(self._room):
            # Twice the size, as long as that is not more than will ever be needed.
            roomy = max(needed, min(2 * needed + _ROOM, self.most))
            room = np.empty(roomy, KNOWN)
            room[: self._size] = self._room[: self._size]
            self._room = room
        self._room[self._size : needed] = records
        self._size = needed
        if needed <= self.most:
            return NONE
        old = self._room[: needed - self.remember].copy()
        self._room[: self.remember] = self._room[needed - self.remember : needed].copy()
        self._size = self.remember
        return old

    @property
    def most(self) -> int:
        """So many are held at most; forgetting one by one would cost more than it frees."""
        return self.remember + max(1, self.remember // 8)


class PastIds(NamedTuple):
    """Ids that a reset or an import made unknown, oldest first, and the last version to know each.

    Who goes back to that version, or before, has to know them again.
    """

    records: np.ndarray
    until: np.ndarray  # (n,) ascending

    def since(self, version: int) -> np.ndarray:
        """Those that were still known at a version, or were learned after it."""
        return self.records[self.until >= version]

    def before(self, version: int) -> PastIds:
        """Those that were no longer known at a version."""
        return PastIds(self.records[self.until < version], self.until[self.until < version])

    def extended(self, records: np.ndarray, until: int, most: int) -> PastIds:
        """With those that are made unknown now; the last ones, so many at the most."""
        versions = np.append(self.until, np.full(len(records), until))
        return PastIds(np.append(self.records, records)[-most:], versions[-most:])


NO_PAST = PastIds(NONE, np.empty(0, np.int64))


def stored(name: str, records: np.ndarray) -> dict[str, np.ndarray]:
    """Records as arrays for a file; where ids are hashes of the content there are no digests."""
    digests = records["digest"] if records["digest"].any() else records["digest"][:0]
    return {f"{name}.ids": records["id"].copy(), f"{name}.digests": digests.copy()}


def restored(name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The records of `stored`."""
    digests = arrays[f"{name}.digests"]
    return known(arrays[f"{name}.ids"], digests if len(digests) else 0)
