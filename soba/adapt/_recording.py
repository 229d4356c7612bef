"""What a call offers to queues and samples, written down as it is offered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soba.adapt.delta import Delta
from soba.adapt.queue import EntropyQueue, Members
from soba.adapt.sample import PLACE_WIDTH, UniformSample, hash_ids


@dataclass(frozen=True)
class _Offer:
    """Samples that were offered to one store."""

    store: str
    ids: np.ndarray
    labels: np.ndarray
    entropies: np.ndarray
    features: np.ndarray
    extra: np.ndarray


class Recorder:
    """Gathers what one call puts into queues and samples, and the ids of all it learns.

    What does not enter is left out before it is offered. So whoever offers what was written down to
    an equal queue, in the same pieces, makes an equal queue to the bit: both are offered the same.
    """

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._pieces: list[np.ndarray] = []
        self._offers: list[_Offer] = []

    def __len__(self) -> int:
        """How many samples were learned."""
        return sum(len(piece) for piece in self._pieces)

    def count(self, ids: np.ndarray) -> None:
        """A piece of the samples is learned, all at a time."""
        if len(ids):
            self._pieces.append(ids)

    def to_queue(self, name: str, queue: EntropyQueue, members: Members) -> Members:
        """What of these is offered to a queue."""
        rows = queue.entering(members.labels, members.entropies, members.ids, members.features)
        return self._note(name, members, rows, queue.extra_width)

    def to_sample(self, name: str, sample: UniformSample, members: Members) -> Members:
        """What of these is offered to a uniform sample."""
        rows = np.argsort(hash_ids(members.ids, sample.key))[: sample.size]
        rows = np.sort(rows[sample.admits(members.ids[rows])])
        return self._note(name, members, rows, PLACE_WIDTH)

    def delta(self, setup: str, id_space: str, *, refreshes: bool) -> Delta:
        """All of it as one value."""
        ids = np.concatenate([np.empty(0, np.int64), *self._pieces])
        order = np.argsort(ids)
        offers = [_no_offer(self._dim), *self._offers]
        at = [order[np.searchsorted(ids, offer.ids, sorter=order)] for offer in offers]
        positions, first = np.unique(np.concatenate(at), return_index=True)

        def carried(name: str) -> np.ndarray:
            joined: np.ndarray = np.concatenate([getattr(offer, name) for offer in offers])
            return joined[first]

        entered, extra = {}, {}
        for store in sorted({offer.store for offer in self._offers}):
            mine = [i for i, offer in enumerate(offers) if offer.store == store]
            rows = np.searchsorted(positions, np.concatenate([at[i] for i in mine]))
            turn = np.argsort(rows)
            entered[store] = rows[turn]
            extra[store] = np.concatenate([offers[i].extra for i in mine])[turn]
        return Delta(
            setup=setup,
            id_space=id_space,
            refreshes=refreshes,
            ids=ids,
            ends=np.cumsum([len(piece) for piece in self._pieces], dtype=np.int64),
            positions=positions,
            features=carried("features"),
            labels=carried("labels"),
            entropies=carried("entropies"),
            entered=entered,
            extra=extra,
        )

    def _note(self, store: str, members: Members, rows: np.ndarray, extra_width: int) -> Members:
        features, extra = np.empty((0, self._dim), np.float32), np.empty((len(rows), 0), np.uint8)
        ids, labels, entropies = members.ids[rows], members.labels[rows], members.entropies[rows]
        if len(rows):
            features = members.features(rows).astype(np.float32, copy=False)
            extra = members.extra(rows) if extra_width else extra
            self._offers.append(_Offer(store, ids, labels, entropies, features, extra))
        return Members(labels, entropies, ids, features.__getitem__, extra.__getitem__)


def _no_offer(dim: int) -> _Offer:
    """What gives empty arrays their types where nothing was offered."""
    no_ids = np.empty(0, np.int64)
    return _Offer("", no_ids, no_ids, np.empty(0), np.empty((0, dim), np.float32), no_ids)
