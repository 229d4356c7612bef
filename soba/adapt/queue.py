"""The entropy queue: for each pseudo-class, the samples that frozen CLIP is surest of.

Paper: SOBA (ICCV 2025), Algorithm 2; TDA's caches (CVPR 2024) follow the same rule. Where those
keep "the first that came" on equal entropies, this queue keeps the smaller id. So its content is
the `capacity` smallest by (entropy, id), a pure function of the *set* of samples: neither arrival
order, nor batching, nor sharding, nor repetition changes it. Everything else is built on that.

Ids that a stream counts itself run -1, -2, ...: among these, and against ids that were given, the
first that came is the smaller one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from soba.adapt._order import TWIN_GAP, before
from soba.adapt._ranking import ranked
from soba.adapt._stored_queue import check_stored

Fetch = Callable[[np.ndarray], np.ndarray]  # (m,) row numbers -> what those rows hold, on the host
_FIRST = np.zeros(1, np.int64)
_FEW_SLOTS = 16  # a class to begin with: a large capacity costs nothing until it is used
_BLOCK_ROWS = 4096  # of features that are copied at a time
MOST_CAPACITY = 1 << 20  # more than this a class is a mistake, or means everything


@dataclass(frozen=True)
class Items:
    """Queue members, a row each, in canonical order: by class, then entropy, then id."""

    features: np.ndarray  # (m, d)
    labels: np.ndarray  # (m,)
    entropies: np.ndarray  # (m,)
    ids: np.ndarray  # (m,)
    extra: np.ndarray  # (m, e)

    def members(self) -> Members:
        return Members(
            self.labels, self.entropies, self.ids, self.features.__getitem__, self.extra.__getitem__
        )


@dataclass(frozen=True)
class Members:
    """The same where features lie elsewhere, in a queue or a file, and are fetched by row."""

    labels: np.ndarray  # (m,)
    entropies: np.ndarray  # (m,)
    ids: np.ndarray  # (m,)
    features: Fetch  # rows -> (r, d)
    extra: Fetch  # rows -> (r, e)


class EntropyQueue:
    """Per class, the `capacity` samples with the smallest (entropy, id).

    Parameters
    ----------
    n_classes, dim
        Number of classes, and of feature dimensions.
    capacity
        Samples kept per class; None keeps everything.
    extra_width
        Bytes carried along with each sample (TDA's negative cache stores a mask there).
    twin_tolerance
        Copies of one image must tie, and then the smaller id wins. But the entropy of a copy
        may differ in its last digits, since float products round differently in blocks of
        different sizes. Samples of one class whose features agree to 1e-6 and whose entropies
        agree to this relative tolerance get one entropy, the one of the smallest id. 0: never.

    Notes
    -----
    Cost: O(m log m) for a block of m candidates; C * capacity * d floats.

    Examples
    --------
    >>> queue = EntropyQueue(n_classes=2, dim=1, capacity=2)
    >>> queue.update(np.array([[1.0], [2.0], [3.0]]), labels=[0, 0, 0], entropies=[0.3, 0.1, 0.2],
    ...              ids=[10, 11, 12])
    >>> queue.items().ids.tolist()
    [11, 12]
    """

    def __init__(
        self,
        n_classes: int,
        dim: int,
        capacity: int | None,
        *,
        extra_width: int = 0,
        twin_tolerance: float = 0.0,
    ) -> None:
        if capacity is not None and (
            isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or capacity < 1
        ):
            raise ValueError(
                f"capacity must be a whole number, 1 at least, or None, not {capacity!r}"
            )
        if capacity is not None and capacity > MOST_CAPACITY:
            raise ValueError(
                f"capacity must be {MOST_CAPACITY} at most, not {capacity}; None keeps everything"
            )
        self.n_classes, self.dim = n_classes, dim
        self.capacity = None if capacity is None else int(capacity)
        self.extra_width, self.twin_tolerance = extra_width, twin_tolerance
        self._allocate(1 if self.capacity is None else min(self.capacity, _FEW_SLOTS))

    def _allocate(self, slots: int) -> None:
        # By slot, in no order: a sample stays in its slot until it is pushed out, and the next one
        # takes it. So n samples fill the first n slots; the rest are zeros, which cost no memory
        # until they are written.
        self.features = np.zeros((self.n_classes, slots, self.dim), np.float32)
        self.extra = np.zeros((self.n_classes, slots, self.extra_width), np.uint8)
        # By rank in the class: sorted by (entropy, id).
        self.entropies = np.full((self.n_classes, slots), np.inf)
        self.ids = np.full((self.n_classes, slots), -1, np.int64)
        self.slots = np.tile(np.arange(slots), (self.n_classes, 1))  # where the features are
        self.sizes = np.zeros(self.n_classes, np.int64)

    def __len__(self) -> int:
        return int(self.sizes.sum())

    @property
    def filled(self) -> np.ndarray:
        """(C, slots) bool: which ranks, and likewise which slots, hold a sample."""
        return np.arange(self.entropies.shape[1]) < self.sizes[:, None]

    @property
    def nbytes(self) -> int:
        """Size of the buffers."""
        arrays = (self.features, self.extra, self.entropies, self.ids, self.slots)
        return sum(array.nbytes for array in arrays)

    @property
    def _grown(self) -> bool:
        """Whether a class that has no free slot is full."""
        return self.entropies.shape[1] == self.capacity

    def admits(self, labels: np.ndarray, entropies: np.ndarray) -> np.ndarray:
        """Which rows could enter the queue as it is (a superset: ties count as yes)."""
        if not self._grown:
            return np.ones(len(labels), bool)
        # A slot that is free has infinite entropy, so a class that is not full admits everything.
        worst = self.entropies[labels, -1]
        admitted: np.ndarray = entropies <= worst * (1.0 + self.twin_tolerance)
        return admitted

    def entering(
        self, labels: np.ndarray, entropies: np.ndarray, ids: np.ndarray, features: Fetch
    ) -> np.ndarray:
        """Which rows of a block, all new, are in the queue once the block was offered."""
        rows = np.flatnonzero(self.admits(labels, entropies))
        if self.capacity is None or len(rows) == 0:
            return rows
        block = labels[rows], entropies[rows], ids[rows]
        ranking = ranked(self, *block, lambda some: features(rows[some]))
        entering: np.ndarray = rows[ranking.entering]
        return entering

    def update(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        entropies: np.ndarray,
        ids: np.ndarray,
        extra: np.ndarray | None = None,
    ) -> None:
        """Offer a block of samples; ids that are in the queue already change nothing."""
        features, ids = np.asarray(features), np.asarray(ids, np.int64)
        labels, entropies = np.asarray(labels, np.int64), np.asarray(entropies, np.float64)
        _, new = np.unique(ids, return_index=True)
        new = np.sort(new[~np.isin(ids[new], self.ids[self.filled])])
        bytes_ = np.empty((len(ids), self.extra_width), np.uint8) if extra is None else extra
        self.offer(
            labels[new],
            entropies[new],
            ids[new],
            lambda rows: features[new[rows]],
            lambda rows: bytes_[new[rows]],
        )

    def offer(
        self,
        labels: np.ndarray,
        entropies: np.ndarray,
        ids: np.ndarray,
        features: Fetch,
        extra: Fetch | None = None,
    ) -> None:
        """The same for ids that are new; features are fetched for the rows that stay."""
        if len(ids) == 1:
            self._insert_one(int(labels[0]), entropies[0], ids[0], features, extra)
            return
        rows = np.flatnonzero(self.admits(labels, entropies))
        if len(rows) == len(ids):
            self._insert_block(labels, entropies, ids, features, extra)
        elif len(rows):
            self._insert_block(
                labels[rows],
                entropies[rows],
                ids[rows],
                lambda some: features(rows[some]),
                extra and (lambda some: extra(rows[some])),
            )

    def merge(self, members: Members) -> None:
        """Take in the samples of another queue over the same classes."""
        new = np.flatnonzero(~np.isin(members.ids, self.ids[self.filled]))
        self.offer(
            members.labels[new],
            members.entropies[new],
            members.ids[new],
            lambda rows: members.features(new[rows]),
            lambda rows: members.extra(new[rows]),
        )

    def members(self) -> Members:
        """The samples in canonical order, their features where they lie until the queue changes."""
        filled = self.filled
        labels = np.repeat(np.arange(self.n_classes), self.sizes)
        at = labels * filled.shape[1] + self.slots[filled]
        features = self.features.reshape(-1, self.dim)
        extra = self.extra.reshape(len(features), self.extra_width)
        return Members(
            labels,
            self.entropies[filled],
            self.ids[filled],
            lambda rows: features[at[rows]],
            lambda rows: extra[at[rows]],
        )

    def items(self) -> Items:
        """The samples in canonical order (class, entropy, id)."""
        held, rows = self.members(), np.arange(len(self))
        features, extra = held.features(rows), held.extra(rows)
        return Items(features, held.labels, held.entropies, held.ids, extra)

    def arrays(self) -> dict[str, np.ndarray]:
        """The content as arrays, a row per sample, for a state file."""
        items = self.items()
        return {
            "features": items.features,
            "labels": items.labels,
            "entropies": items.entropies,
            "ids": items.ids,
            "extra": items.extra,
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the content by what `arrays` gave, to the bit."""
        self.check(arrays)
        most = int(np.bincount(arrays["labels"]).max(initial=1))
        self._allocate(self._room(most))
        self._fill(arrays)

    def check(self, arrays: dict[str, np.ndarray]) -> Items:
        """What `arrays` gave of a queue like this one; raises if it cannot be of any."""
        check_stored(
            arrays,
            n_classes=self.n_classes,
            dim=self.dim,
            capacity=self.capacity,
            extra_width=self.extra_width,
        )
        return Items(**{name: arrays[name] for name in Items.__annotations__})

    def _fill(self, arrays: dict[str, np.ndarray]) -> None:
        labels = arrays["labels"]
        self.sizes = np.bincount(labels, minlength=self.n_classes).astype(np.int64)
        starts = np.cumsum(self.sizes) - self.sizes
        rank = np.arange(len(labels)) - starts[labels]
        for name in ("features", "entropies", "ids", "extra"):  # slot = rank
            getattr(self, name)[labels, rank] = arrays[name]

    def copy(self) -> EntropyQueue:
        return copy.deepcopy(self)

    def _insert_one(
        self,
        label: int,
        entropy: np.float64,
        id_: np.int64,
        features: Fetch,
        extra: Fetch | None,
    ) -> None:
        """The block insertion for one row, without its sorting: streams live here."""
        size = int(self.sizes[label])
        entropies, ids = self.entropies[label], self.ids[label]
        if self._grown and entropy > entropies[-1] * (1.0 + self.twin_tolerance):
            return
        if self.twin_tolerance:
            close = np.abs(entropies[:size] - entropy) <= self.twin_tolerance * np.abs(entropy)
            if close.any():
                near = self.features[label, self.slots[label, :size][close]]
                if (np.abs(near - features(_FIRST)).max(axis=1) <= TWIN_GAP).any():
                    # A copy, which is rare: the block path settles it.
                    one = np.array([label]), np.array([entropy]), np.array([id_])
                    self._insert_block(*one, features, extra)
                    return
        # Rank among the members by (entropy, id).
        rank = int(entropies[:size].searchsorted(entropy, side="left"))
        while rank < size and entropies[rank] == entropy and before(ids[rank], id_):
            rank += 1
        if size == len(entropies):
            if not self._grown:
                self._grow(size + 1)
                entropies, ids = self.entropies[label], self.ids[label]
            elif rank == size:
                return
            else:
                size -= 1  # the last one goes, and leaves its slot
        slots = self.slots[label]
        slot = int(slots[size])
        self.features[label, slot] = features(_FIRST)[0]
        if extra is not None:
            self.extra[label, slot] = extra(_FIRST)[0]
        for column, value in ((entropies, entropy), (ids, id_), (slots, slot)):
            column[rank + 1 : size + 1] = column[rank:size]
            column[rank] = value
        self.sizes[label] = size + 1

    def _insert_block(
        self,
        labels: np.ndarray,
        entropies: np.ndarray,
        ids: np.ndarray,
        features: Fetch,
        extra: Fetch | None,
    ) -> None:
        """Sort the new rows together with the members of their classes; keep the first of each."""
        if not self._grown:
            self._grow(int((self.sizes + np.bincount(labels, minlength=self.n_classes)).max()))
        ranking = ranked(self, labels, entropies, ids, features)
        old, order, rank = ranking.members, ranking.order, ranking.rank
        label = ranking.labels[order]
        # Members stay in their slots; the new ones fill, class by class, the slots without one.
        new = order >= old
        slot = np.empty(len(order), np.int64)
        slot[~new] = ranking.slots[order[~new]]
        occupied = np.zeros(self.entropies.shape, bool)
        occupied[label[~new], slot[~new]] = True
        arrivals = np.bincount(label[new], minlength=self.n_classes)
        free = ~occupied
        free &= np.cumsum(free, axis=1) <= arrivals[:, None]
        slot[new] = np.nonzero(free)[1]  # both run by class
        source, at = order[new] - old, (label[new], slot[new])
        for start in range(0, len(source), _BLOCK_ROWS):  # a copy of all would be as large again
            some = slice(start, start + _BLOCK_ROWS)
            self.features[at[0][some], at[1][some]] = features(source[some])
            if extra is not None:
                self.extra[at[0][some], at[1][some]] = extra(source[some])
        self.entropies[label, rank] = ranking.entropies[order]
        self.ids[label, rank] = ranking.ids[order]
        sizes = np.bincount(label, minlength=self.n_classes)
        self.sizes[sizes > 0] = sizes[sizes > 0]  # of the classes that new rows are of
        self.slots[label, rank] = slot

    def _grow(self, slots: int) -> None:
        """Room for `slots` samples a class, or for as many as it may hold."""
        if min(slots, self.capacity or slots) <= self.entropies.shape[1]:
            return
        items = self.arrays()
        self._allocate(self._room(slots))
        self._fill(items)

    def _room(self, slots: int) -> int:
        """Slots to make where so many are needed: few, but not one by one."""
        roomy = max(1 << (slots - 1).bit_length(), _FEW_SLOTS if self.capacity else 1)
        return min(roomy, self.capacity or roomy)
