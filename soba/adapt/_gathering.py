"""The samples of several adapters as those of one that saw all: taken in one adapter at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np

from soba.adapt._ids import SeenIds
from soba.adapt.queue import EntropyQueue, Fetch, Members
from soba.adapt.sample import Sampled, UniformSample

Stores = Iterable[tuple[np.ndarray, Fetch]]  # the ids in each, and how to get at their features
OTHER_SAMPLE = 1e-3  # in any coordinate: encoders round by batch and machine, but by less
_BLOCK_ROWS = 4096  # of features that are compared at a time


class Gathering:
    """Queues and uniform samples that begin empty, and the ids of all samples behind them.

    Beside what is gathered only a few rows are held at a time: features are fetched for the samples
    that enter, and for ids that come again.
    """

    def __init__(self, queues: dict[str, EntropyQueue], samples: dict[str, UniformSample]) -> None:
        self.queues, self.samples, self.seen = queues, samples, SeenIds()

    def take_in(
        self, queues: Mapping[str, Members], samples: Mapping[str, Sampled], seen: SeenIds
    ) -> None:
        """Add what one adapter keeps; after an error the gathering is of no use."""
        self.seen = self.seen.union(seen)
        kept = {name: queue.members() for name, queue in self.queues.items()}
        drawn = {name: sample.held() for name, sample in self.samples.items()}
        for one, other in itertools.product(stores_of(kept, drawn), stores_of(queues, samples)):
            refuse_conflicts(*one, *other)
        for name, queue in self.queues.items():
            queue.merge(queues[name])
        for name, sample in self.samples.items():
            sample.merge(samples[name])


def stores_of(queues: Mapping[str, Members], samples: Mapping[str, Sampled]) -> Stores:
    """The places where samples are kept."""
    return [
        *((members.ids, members.features) for members in queues.values()),
        *((drawn.ids, drawn.features.__getitem__) for drawn in samples.values()),
    ]


def refuse_conflicts(
    ids: np.ndarray, features: Fetch, other_ids: np.ndarray, other_features: Fetch
) -> None:
    """Raise if one id names two different samples: shards that both counted from 0."""
    common, left, right = np.intersect1d(ids, other_ids, assume_unique=True, return_indices=True)
    for start in range(0, len(common), _BLOCK_ROWS):
        some = slice(start, start + _BLOCK_ROWS)
        gap = np.abs(features(left[some]) - other_features(right[some])).max(axis=1)
        if (gap > OTHER_SAMPLE).any():
            raise ValueError(
                f"id {common[some][np.argmax(gap)]} names different samples in two adapters: "
                "give each shard ids of its own"
            )


def other_samples(stores: Stores, ids: np.ndarray, features: np.ndarray) -> np.ndarray:
    """(n,) bool: which samples have the id of another one that is kept; ids may repeat."""
    others = np.zeros(len(ids), bool)
    for kept_ids, kept_features in stores:
        order = np.argsort(kept_ids)
        places = np.searchsorted(kept_ids, ids, sorter=order)
        rows = np.flatnonzero(places < len(kept_ids))
        rows = rows[kept_ids[order[places[rows]]] == ids[rows]]
        gap = np.abs(features[rows] - kept_features(order[places[rows]])).max(axis=1)
        others[rows] |= gap > OTHER_SAMPLE
    return others
