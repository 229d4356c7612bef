"""A uniform sample of the stream: the images whose ids have the smallest hashes.

Every image has the same chance to be kept, whatever it looks like and whatever CLIP says of it.
Which ones are kept depends on their ids alone, so neither arrival order, nor batching, nor
sharding, nor repetition changes the sample: it merges as a set does. The hash has a key, since
whoever could choose ids that enter the sample could choose what is learned from it.

With each image goes its place in the stream that it came in: how many had been learned before it.
Where two streams saw the same image, the earlier place counts.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np

from soba.adapt.queue import Fetch

PLACE_WIDTH = 8  # bytes
_BLOCK_ROWS = 4096  # of features that are fetched at a time
_FIRST = np.zeros(1, np.int64)
_MASK = (1 << 64) - 1
# The constants of splitmix64: a bijection of 64 bits, so that no two ids have one hash.
_STEP, _MIX, _MIX_AGAIN = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True)
class Sampled:
    """The images kept, a row each, by the hash of their ids."""

    features: np.ndarray  # (m, d)
    ids: np.ndarray  # (m,)
    places: np.ndarray  # (m,) in the stream

    def first(self, count: int) -> Sampled:
        """Those of the smallest hashes: a uniform sample as well."""
        return Sampled(self.features[:count], self.ids[:count], self.places[:count])


class UniformSample:
    """The `size` images whose ids have the smallest hashes under a key.

    Cost: O(m) for a block of m candidates of which few enter; size * d floats.

    Examples
    --------
    >>> sample = UniformSample(dim=1, size=3)
    >>> sample.update(np.arange(10.0)[:, None], ids=np.arange(10), places=np.arange(10))
    >>> halves = UniformSample(dim=1, size=3)
    >>> halves.update(np.arange(5.0, 10.0)[:, None], ids=np.arange(5, 10), places=np.arange(5))
    >>> halves.update(np.arange(5.0)[:, None], ids=np.arange(5), places=np.arange(5))
    >>> bool((halves.items().ids == sample.items().ids).all()), len(sample)
    (True, 3)
    """

    def __init__(self, dim: int, size: int, *, key: int = 0) -> None:
        self.dim, self.size, self.key = dim, size, key
        self._allocate()

    def _allocate(self) -> None:
        # An image stays in its slot until it is pushed out, and the next one takes it.
        self.features = np.zeros((self.size, self.dim), np.float32)
        self.ids = np.zeros(self.size, np.int64)
        self.places = np.zeros(self.size, np.int64)
        self.hashes = np.full(self.size, _MASK, np.uint64)
        self._count = 0
        self._worst = _MASK  # the largest hash that is kept, once all slots are taken

    def __len__(self) -> int:
        return self._count

    def update(self, features: np.ndarray, ids: np.ndarray, places: np.ndarray) -> None:
        """Offer a block of images; where an id repeats, or is known, its earliest place counts."""
        features, ids = np.asarray(features), np.asarray(ids, np.int64)
        places = np.asarray(places)
        order = np.argsort(places, kind="stable")
        first = order[np.unique(ids[order], return_index=True)[1]]
        self.see(ids[first], places[first])
        new = first[~np.isin(ids[first], self.ids[: self._count])]
        self.offer(ids[new], places[new], lambda rows: features[new[rows]])

    def see(self, ids: np.ndarray, places: np.ndarray) -> None:
        """Of images that are in the sample already, the earlier place counts."""
        _, here, there = np.intersect1d(
            self.ids[: self._count], ids, assume_unique=True, return_indices=True
        )
        self.places[here] = np.minimum(self.places[here], places[there])

    def admits(self, ids: np.ndarray) -> np.ndarray:
        """Which of some new ids would enter the sample as it is, each for itself."""
        if self._count < self.size:
            return np.ones(len(ids), bool)
        admitted: np.ndarray = hash_ids(ids, self.key) < np.uint64(self._worst)
        return admitted

    def offer(self, ids: np.ndarray, places: np.ndarray, features: Fetch) -> None:
        """The same for ids that are new; features are fetched for the rows that stay."""
        if len(ids) == 1:
            self._offer_one(int(ids[0]), int(places[0]), features)
            return
        hashes, rows = hash_ids(ids, self.key), np.arange(len(ids))
        if self._count == self.size:
            rows = np.flatnonzero(hashes < np.uint64(self._worst))
        if len(rows) > self.size:
            rows = rows[np.argpartition(hashes[rows], self.size - 1)[: self.size]]
        if len(rows):
            self._insert(hashes[rows], ids[rows], places[rows], rows, features)

    def merge(self, items: Sampled) -> None:
        """Take in another sample of the same size and key."""
        self.update(items.features, items.ids, items.places)

    def items(self, first: int | None = None) -> Sampled:
        """The images in canonical order, by hash; only the first ones, if so many are asked for."""
        order = np.argsort(self.hashes[: self._count])[:first]
        return Sampled(self.features[order], self.ids[order], self.places[order])

    def held(self) -> Sampled:
        """The same images where they lie, in no order."""
        kept = slice(self._count)
        return Sampled(self.features[kept], self.ids[kept], self.places[kept])

    def arrays(self) -> dict[str, np.ndarray]:
        """The content as arrays, a row per image, for a state file."""
        items = self.items()
        return {"features": items.features, "ids": items.ids, "places": items.places}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the content by what `arrays` gave, to the bit."""
        items = self.check(arrays)
        self._allocate()
        rows = np.arange(len(items.ids))
        hashes, features = hash_ids(items.ids, self.key), items.features.__getitem__
        self._insert(hashes, items.ids, items.places, rows, features)

    def check(self, arrays: dict[str, np.ndarray]) -> Sampled:
        """What `arrays` gave, checked; features stay in it."""
        features, ids, places = arrays["features"], arrays["ids"], arrays["places"]
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
        if places.shape != (count,) or places.dtype.kind != "i" or (places < 0).any():
            raise ValueError("the stored sample's places in the stream are no whole numbers")
        hashes = hash_ids(ids, self.key)
        if (hashes[1:] <= hashes[:-1]).any():
            raise ValueError("the stored sample is not in the order of its ids' hashes")
        return Sampled(features, ids, places)

    def copy(self) -> UniformSample:
        return copy.deepcopy(self)

    def _offer_one(self, id_: int, place: int, features: Fetch) -> None:
        """The same for one image, without arrays: streams live here."""
        hashed, slot = _hash_one(id_, self.key), self._count
        if self._count == self.size:
            if hashed > self._worst:
                return
            slot = int(self.hashes.argmax())
        self.features[slot] = features(_FIRST)[0]
        self.ids[slot], self.places[slot], self.hashes[slot] = id_, place, hashed
        self._count = max(self._count, slot + 1)
        if self._count == self.size:
            self._worst = int(self.hashes.max())

    def _insert(
        self,
        hashes: np.ndarray,
        ids: np.ndarray,
        places: np.ndarray,
        rows: np.ndarray,
        features: Fetch,
    ) -> None:
        """Of what is kept and what is offered, keep the smallest; new ones fill free slots."""
        kept = self._count
        together = np.concatenate([self.hashes[:kept], hashes])
        stay = np.ones(len(together), bool)
        if len(together) > self.size:
            stay[np.argpartition(together, self.size - 1)[self.size :]] = False
        new = np.flatnonzero(stay[kept:])
        free = np.concatenate([np.flatnonzero(~stay[:kept]), np.arange(kept, self.size)])
        slots = free[: len(new)]
        for start in range(0, len(new), _BLOCK_ROWS):
            some = slice(start, start + _BLOCK_ROWS)
            self.features[slots[some]] = features(rows[new[some]])
        self.ids[slots], self.places[slots], self.hashes[slots] = ids[new], places[new], hashes[new]
        self._count = int(stay.sum())
        if self._count == self.size:
            self._worst = int(self.hashes.max())


def place_bytes(places: np.ndarray) -> np.ndarray:
    """(n,) places -> (n, 8) bytes, as deltas carry them."""
    return places.astype("<i8").view(np.uint8).reshape(len(places), PLACE_WIDTH)


def places_of(content: np.ndarray) -> np.ndarray:
    """(n, 8) bytes -> (n,) places."""
    return np.ascontiguousarray(content).view("<i8")[:, 0].astype(np.int64)


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
