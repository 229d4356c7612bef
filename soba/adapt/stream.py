"""What the queue methods share: samples counted once, learned in order, merged between shards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt._arrays import Array, Batch, ClipScores, read_ids, score_with_clip, to_host
from soba.adapt._ids import SeenIds
from soba.adapt.base import Adapter
from soba.adapt.queue import EntropyQueue, Items
from soba.adapt.sample import Sampled, UniformSample

_LEAST_ROWS, _BLOCK_LOGITS = 256, 1 << 20  # of what is learned from at a time
TWIN_TOLERANCE = 1e-4  # far above the rounding of an entropy, far below what tells images apart


class StreamAdapter(Adapter):
    """An adapter that remembers some samples of its stream: in entropy queues, or by chance."""

    keeps_samples: ClassVar[bool] = True  # else it neither merges nor learns again under other text

    _stored_as: ClassVar[Mapping[str, str]] = {"refresh": "refresh_rule"}  # refresh is a verb
    _seen: SeenIds
    _queues: dict[str, EntropyQueue]
    _samples: dict[str, UniformSample]

    @property
    def n_seen(self) -> int:
        """How many different samples were learned from."""
        return len(self._seen)

    @property
    def id_space(self) -> str | None:
        """What the ids of samples are counted in; None before the first, unless it was named.

        "count" where samples came without ids; otherwise "given", or the name that was set: ids
        made of an image's content are of another space than row numbers of some list.
        """
        return self._seen.space

    @id_space.setter
    def id_space(self, space: str) -> None:
        with self._lock:
            self._seen.call_given(space)

    def learn(self, features: Array, *, ids: Any = None) -> None:
        """Learn from samples without scoring them; refreshes nothing.

        What is kept is what :meth:`adapt` keeps of the same samples. Refreshes that fall due on the
        way are left to :meth:`refresh`, and the schedule goes on from there.

        >>> from soba import NCM
        >>> ncm = NCM(np.eye(2), logit_scale=10.0)
        >>> ncm.learn(np.array([[0.8, 0.6], [0.6, 0.8]]))
        >>> ncm.n_seen, ncm.refresh().predict(np.array([0.9, 0.1]))
        (2, np.int64(0))
        """
        batch = self._read(features)
        checked = None if ids is None else read_ids(ids, len(batch))
        with self._lock:
            numbered, fresh = self._seen.number(checked, len(batch))
            step = max(_LEAST_ROWS, _BLOCK_LOGITS // self.n_classes)
            for start in range(0, len(fresh), step):
                rows = fresh[start : start + step]
                clip = self._clip(Batch(batch.xp, batch.x[rows, ...], False))
                self._learn(clip, numbered[rows], np.arange(len(rows)))
            self._reschedule()

    def refresh(self) -> Self:
        """Make the statistics anew now, of what is kept; a method without any has nothing to do."""
        with self._lock:
            self._settle()
        return self

    def merge(self, other: Self) -> Self:
        """Take in what another adapter of the same kind learned from other samples.

        The result is the one of a single adapter that saw both streams, in any order. Give each
        shard ids of its own; a sample that both saw counts once. Adapters whose ids are of
        different spaces are refused, and so are two that both numbered their samples themselves:
        the same number would name two samples. Changes this adapter only.
        """
        if type(other) is not type(self) or other.params != self.params:
            raise ValueError(f"cannot merge {other!r} into {self!r}: they are set up differently")
        if not np.array_equal(other.text_features, self.text_features):
            raise ValueError("cannot merge adapters with different text features")
        with other._lock:  # let go before our own is taken: two may merge into each other
            learned: dict[str, Any] = {n: store.items() for n, store in other._stores.items()}
            seen = other._seen.copy()
        with self._lock:
            seen = self._seen.union(seen)
            for store in self._stores.values():
                for theirs in learned.values():
                    _refuse_conflicts(store.items(), theirs)
            queues = {name: queue.copy() for name, queue in self._queues.items()}
            samples = {name: sample.copy() for name, sample in self._samples.items()}
            for name, queue in queues.items():
                queue.merge(learned[name])
            for name, sample in samples.items():
                sample.merge(learned[name])
            self._queues, self._samples, self._seen = queues, samples, seen
            self._settle()
        return self

    @property
    def _stores(self) -> dict[str, EntropyQueue | UniformSample]:
        """Wherever samples are kept, by name."""
        return {**self._queues, **self._samples}

    def _reset(self) -> None:
        named = self._seen.given_space if hasattr(self, "_seen") else None
        self._seen = SeenIds(named)
        self._queues, self._samples = self._empty_queues(), self._empty_samples()

    def _take_over(self, other: Self) -> None:
        for name, queue in other._queues.items():
            items = queue.items()
            if len(items.ids):
                clip = self._clip(Batch(np, items.features, False))
                self._offer(name, clip, items.ids, np.arange(len(items.ids)))
        self._samples = {name: sample.copy() for name, sample in other._samples.items()}
        self._seen = other._seen.copy()
        self._settle()

    def _clip(self, batch: Batch) -> ClipScores:
        """What frozen CLIP says of a batch."""
        return score_with_clip(batch, self._mirror("text", self._scaled_text, batch))

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = self._seen.arrays()
        for name, store in self._stores.items():
            arrays |= {f"{name}.{key}": array for key, array in store.arrays().items()}
        return arrays

    def _meta(self) -> dict[str, Any]:
        return self._seen.meta()

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        self._seen = SeenIds.restored(arrays, meta)
        for name, store in self._stores.items():
            store.restore({key: arrays[f"{name}.{key}"] for key in store.arrays()})
            if not self._seen.knows(arrays[f"{name}.ids"]):
                raise ValueError(f"the stored {name} holds samples that were never counted")

    def _offer(self, name: str, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        """Offer some rows of a batch to a queue."""
        queue = self._queues[name]
        queue.offer(
            clip.labels[rows],
            clip.entropies[rows],
            ids[rows],
            lambda some: to_host(clip.features[rows[some]]),
            (lambda some: self._extra(clip, rows[some])) if queue.extra_width else None,
        )

    def _extra(self, clip: ClipScores, rows: np.ndarray) -> np.ndarray:
        """(m, e) bytes to keep with each of some rows, for queues that have room for them."""
        return np.empty((len(rows), 0), np.uint8)

    @abstractmethod
    def _empty_queues(self) -> dict[str, EntropyQueue]:
        """New queues for these classes."""

    def _empty_samples(self) -> dict[str, UniformSample]:
        """New uniform samples, for methods that keep any; their names are not those of queues."""
        return {}

    @abstractmethod
    def _learn(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        """Offer some rows of a batch, all of them new, to the queues, and count them."""

    def _settle(self) -> None:
        """Bring up to date what depends on the samples that are kept."""

    def _reschedule(self) -> None:
        """Go on to the first refresh after the samples learned so far."""


def _refuse_conflicts(a: Items | Sampled, b: Items | Sampled) -> None:
    """Raise if one id names two different samples: shards that both counted from 0."""
    common, left, right = np.intersect1d(a.ids, b.ids, assume_unique=True, return_indices=True)
    if len(common) == 0:
        return
    gap = np.abs(a.features[left] - b.features[right]).max(axis=1)
    if (gap > 1e-3).any():
        raise ValueError(
            f"id {common[np.argmax(gap)]} names different samples in the two adapters: "
            "give each shard ids of its own"
        )
