"""A uniform sample of the stream: the samples whose ids have the smallest hashes.

The entropy queue holds what frozen CLIP is surest of, and nothing there can tell how often CLIP is
wrong. Here every sample has the same chance to be kept, whatever it looks like. Which ones are kept
depends on their ids alone, so neither arrival order, nor batching, nor sharding, nor repetition
changes the sample: it merges as the queue does. The hash has a key, since whoever could choose ids
that enter the sample could choose what is learned from it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np

from soba.adapt.queue import Fetch

_FIRST = np.zeros(1, np.int64)
_MASK = (1 << 64) - 1
# The constants of splitmix64: a bijection of 64 bits, so that no two ids have one hash.
_STEP, _MIX, _MIX_AGAIN = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True)
class Sampled:
    """The samples kept, a row each, by the hash of their ids."""

    features: np.ndarray  # (m, d)
    ids: np.ndarray  # (m,)


class UniformSample:
    """The `size` samples whose ids have the smallest hashes under a key.

    Cost: O(m) for a block of m candidates of which few enter; size * d floats.

    Examples
    --------
    >>> sample = UniformSample(dim=1, size=3)
    >>> sample.update(np.arange(10.0)[:, None], ids=np.arange(10))
    >>> halves = UniformSample(dim=1, size=3)
    >>> halves.update(np.arange(5.0, 10.0)[:, None], ids=np.arange(5, 10))
    >>> halves.update(np.arange(5.0)[:, None], ids=np.arange(5))
    >>> bool((halves.items().ids == sample.items().ids).all()), len(sample)
    (True, 3)
    """

    def __init__(self, dim: int, size: int, *, key: int = 0) -> None:
        self.dim, self.size, self.key = dim, size, key
        self._allocate()

    def _allocate(self) -> None:
        # A sample stays in its slot until it is pushed out, and the next one takes it.
        self.features = np.zeros((self.size, self.dim), np.float32)
        self.ids = np.zeros(self.size, np.int64)
        self.hashes = np.full(self.size, _MASK, np.uint64)
        self._count = 0
        self._worst = _MASK  # the largest hash that is kept, once all slots are taken

    def __len__(self) -> int:
        return self._count

    def update(self, features: np.ndarray, ids: np.ndarray) -> None:
        """Offer a block of samples; ids that are in the sample already change nothing."""
        features, ids = np.asarray(features), np.asarray(ids, np.int64)
        _, new = np.unique(ids, return_index=True)
        new = new[~np.isin(ids[new], self.ids[: self._count])]
        self.offer(ids[new], lambda rows: features[new[rows]])

    def admits(self, ids: np.ndarray) -> np.ndarray:
        """Which of some new ids would enter the sample as it is, each for itself."""
        if self._count < self.size:
            return np.ones(len(ids), bool)
        admitted: np.ndarray = hash_ids(ids, self.key) < np.uint64(self._worst)
        return admitted

    def offer(self, ids: np.ndarray, features: Fetch) -> None:
        """The same for ids that are new; features are fetched for the rows that stay."""
        if len(ids) == 1:  # streams live here: no arrays are made for a sample that does not enter
            hashed = _hash_one(int(ids[0]), self.key)
            if self._count == self.size and hashed > self._worst:
                return
            hashes = np.array([hashed], np.uint64)
        else:
            hashes = hash_ids(ids, self.key)
        rows = np.arange(len(ids))
        if self._count == self.size:
            rows = np.flatnonzero(hashes < np.uint64(self._worst))
        if len(rows) > self.size:
            rows = rows[np.argpartition(hashes[rows], self.size - 1)[: self.size]]
        if len(rows):
            self._insert(hashes[rows], ids[rows], rows, features)

    def merge(self, items: Sampled) -> None:
        """Take in another sample of the same size and key."""
        self.update(items.features, items.ids)

    def items(self) -> Sampled:
        """The samples in canonical order, by hash."""
        order = np.argsort(self.hashes[: self._count])
        return Sampled(self.features[order], self.ids[order])

    def arrays(self) -> dict[str, np.ndarray]:
        """The content as arrays, a row per sample, for a state file."""
        items = self.items()
        return {"features": items.features, "ids": items.ids}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the content by what `arrays` gave, to the bit."""
        features, ids = arrays["features"], arrays["ids"]
        count = len(ids)
        if ids.shape != (count,) or ids.dtype.kind != "i" or count > self.size:
            raise ValueError(f"the stored sample has ids of shape {ids.shape}, {ids.dtype}")
        if features.shape != (count, self.dim) or features.dtype.kind != "f":
            raise ValueError(
                f"the stored sample's features are {features.dtype} of shape {features.shape}, "
                f"where shape {(count, self.dim)} is due"
            )
        if not np.isfinite(features).all():
            raise ValueError("the stored sample's features hold NaN or infinite values")
        hashes = hash_ids(ids, self.key)
        if (hashes[1:] <= hashes[:-1]).any():
            raise ValueError("the stored sample is not in the order of its ids' hashes")
        self._allocate()
        self._insert(hashes, ids, np.arange(count), lambda rows: features[rows])

    def copy(self) -> UniformSample:
        return copy.deepcopy(self)

    def _insert(
        self, hashes: np.ndarray, ids: np.ndarray, rows: np.ndarray, features: Fetch
    ) -> None:
        """Of what is kept and what is offered, keep the smallest; new ones fill free slots."""
        kept = self._count
        together = np.concatenate([self.hashes[:kept], hashes])
        if len(together) > self.size:
            stay = np.zeros(len(together), bool)
            stay[np.argpartition(together, self.size - 1)[: self.size]] = True
        else:
            stay = np.ones(len(together), bool)
        new = np.flatnonzero(stay[kept:])
        free = np.concatenate([np.flatnonzero(~stay[:kept]), np.arange(kept, self.size)])
        slots = free[: len(new)]
        if len(new):
            self.features[slots] = features(rows[new])
            self.ids[slots], self.hashes[slots] = ids[new], hashes[new]
        self._count = int(stay.sum())
        if self._count == self.size:
            self._worst = int(self.hashes.max())


def hash_ids(ids: np.ndarray, key: int) -> np.ndarray:
    """(n,) int64 ids -> (n,) uint64 hashes."""
    with np.errstate(over="ignore"):
        mixed = ids.astype(np.int64).view(np.uint64) + np.uint64((key + 1) * _STEP & _MASK)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_MIX_AGAIN)
        hashed: np.ndarray = mixed ^ (mixed >> np.uint64(31))
    return hashed


def _hash_one(id_: int, key: int) -> int:
    """The same of one id, in Python's numbers: a fifth of the time that arrays take."""
    mixed = (id_ + (key + 1) * _STEP) & _MASK
    mixed = (mixed ^ (mixed >> 30)) * _MIX & _MASK
    mixed = (mixed ^ (mixed >> 27)) * _MIX_AGAIN & _MASK
    return mixed ^ (mixed >> 31)
