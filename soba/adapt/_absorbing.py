"""Deltas on their way into an adapter: what of them is new, and the scores that they carry."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from soba.adapt._arrays import ClipScores
from soba.adapt._gathering import Stores, refuse_conflicts
from soba.adapt._ids import SeenIds
from soba.adapt.delta import Delta
from soba.adapt.queue import Members


class Carried(ClipScores):
    """What frozen CLIP said of the samples of a delta, where they were learned.

    Labels and entropies are of all n samples, NaN where the sample was not carried; features are
    of those that were.
    """

    def __init__(self, delta: Delta) -> None:
        labels, entropies = np.zeros(len(delta), np.int64), np.full(len(delta), np.nan)
        labels[delta.positions], entropies[delta.positions] = delta.labels, delta.entropies
        unsaid = np.full(len(delta), np.nan)
        super().__init__(delta.features, unsaid, labels, entropies, unsaid, None)
        self._delta = delta
        self._positions = {store: delta.positions[at] for store, at in delta.entered.items()}

    def members(self, store: str, ids: np.ndarray, rows: np.ndarray) -> Members:
        """Those of some rows, ascending, that entered a store where they were learned."""
        delta, positions = self._delta, self._positions.get(store, rows[:0])
        start, stop = np.searchsorted(positions, [rows[0], rows[-1] + 1]) if len(rows) else (0, 0)
        at = start + np.flatnonzero(np.isin(positions[start:stop], rows, assume_unique=True))
        carried = delta.entered[store][at] if len(at) else at
        return Members(
            delta.labels[carried],
            delta.entropies[carried],
            ids[delta.positions[carried]],
            lambda some: delta.features[carried[some]],
            lambda some: delta.extra[store][at[some]],
        )


@dataclass(frozen=True)
class Arrival:
    """A delta, and the rows of it that are new to an adapter, piece by piece."""

    carried: Carried
    ids: np.ndarray
    id_space: str
    pieces: list[np.ndarray]
    refreshes: bool

    def __len__(self) -> int:
        """How many of its samples are new."""
        return sum(len(rows) for rows in self.pieces)


def arrivals(seen: SeenIds, kept: Callable[[], Stores], deltas: Sequence[Delta]) -> list[Arrival]:
    """What some deltas, one after the other, bring to an adapter; raises before it changes.

    `kept` gives the samples that the adapter keeps, for ids that come again.
    """
    deltas = [delta for delta in deltas if len(delta)]
    if not deltas:
        return []
    for delta in deltas:
        seen.check_space(delta.id_space)
        if delta.id_space != deltas[0].id_space:
            raise ValueError(
                f"ids of different spaces do not mix: {deltas[0].id_space} and {delta.id_space}"
            )
    ids = np.concatenate([delta.ids for delta in deltas])
    new = np.zeros(len(ids), bool)
    new[np.unique(ids, return_index=True)[1]] = True
    new &= seen.unknown(ids)
    if ids[0] < 0 and (ids[new] != -1 - seen.counted - np.arange(new.sum())).any():
        raise ValueError(
            "samples without ids are absorbed in the order they were counted in, and some "
            "between are missing: give samples ids, adapt_changes(..., ids=...)"
        )
    edges = np.cumsum([0, *(len(delta) for delta in deltas)])
    masks = [new[a:b] for a, b in itertools.pairwise(edges)]
    _refuse_other_samples(kept, deltas, masks)
    return [_arrival(delta, mask) for delta, mask in zip(deltas, masks, strict=True)]


def _arrival(delta: Delta, new: np.ndarray) -> Arrival:
    pieces = np.split(np.arange(len(delta)), delta.ends[:-1])
    fresh = [rows[new[rows]] for rows in pieces if new[rows].any()]
    return Arrival(Carried(delta), delta.ids, delta.id_space, fresh, delta.refreshes)


def _refuse_other_samples(
    kept: Callable[[], Stores], deltas: Sequence[Delta], masks: Sequence[np.ndarray]
) -> None:
    """Raise if an id that comes again names another sample than the one that is kept."""
    again = [i for i, delta in enumerate(deltas) if not masks[i][delta.positions].all()]
    if not again:
        return
    stores = list(kept())
    for i in again:
        mine = deltas[i].ids[deltas[i].positions], deltas[i].features.__getitem__
        before = [(d.ids[d.positions], d.features.__getitem__) for d in deltas[:i]]
        for other in (*stores, *before):
            refuse_conflicts(*mine, *other)
