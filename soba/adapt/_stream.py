"""What the queue methods share: samples counted once, learned in order, merged between shards."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from soba.adapt._arrays import Array, Batch, Clip, clip_view, distances, to_host
from soba.adapt._ids import IdSet
from soba.adapt._schedule import Refresh, Schedule
from soba.adapt.base import Adapter
from soba.adapt.queue import EntropyQueue

TWIN_TOLERANCE = 1e-4  # far above the rounding of an entropy, far below what tells images apart


class StreamAdapter(Adapter):
    """An adapter that remembers some samples of its stream in entropy queues."""

    _seen: IdSet
    _queues: dict[str, EntropyQueue]

    @property
    def count(self) -> int:
        """How many different samples were learned from."""
        return len(self._seen)

    def merge(self, other: Self) -> Self:
        """Take in what another adapter of the same kind learned from other samples.

        The result is the one of a single adapter that saw both streams, in any order. Give each
        shard ids of its own; a sample that both saw counts once. Changes this adapter only.
        """
        if type(other) is not type(self) or other.params != self.params:
            raise ValueError(f"cannot merge {other!r} into {self!r}: they are set up differently")
        if not np.array_equal(other.text_features, self.text_features):
            raise ValueError("cannot merge adapters with different text features")
        merged = {}
        for name, queue in self._queues.items():
            _refuse_conflicts(queue, other._queues[name])
            merged[name] = queue.copy()
            merged[name].merge(other._queues[name])
        self._queues = merged
        self._seen = self._seen.union(other._seen)
        self._settle()
        return self

    def _reset(self) -> None:
        self._seen = IdSet()
        self._queues = self._empty_queues()

    def _take_over(self, other: Self) -> None:
        for name, queue in other._queues.items():
            items = queue.items()
            if len(items.ids):
                clip = self._clip(Batch(np, items.features, False))
                self._offer(name, clip, items.ids, np.arange(len(items.ids)))
        self._seen = other._seen.copy()
        self._settle()

    def _number(self, ids: np.ndarray | None, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of n samples, and the rows among them that were not seen before."""
        if ids is None:
            start = self._seen.next_free
            if start + n >= np.iinfo(np.int64).max:
                raise ValueError(f"no ids left above {start - 1}: give ids of your own")
            return np.arange(start, start + n, dtype=np.int64), np.arange(n)
        return ids, np.flatnonzero(~self._seen.contains(ids))

    def _clip(self, batch: Batch) -> Clip:
        """What frozen CLIP says of a batch."""
        return clip_view(batch, self._mirror("text", self._scaled_text, batch))

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {"seen": self._seen.intervals()}
        for name, queue in self._queues.items():
            arrays |= {f"{name}.{key}": array for key, array in queue.arrays().items()}
        return arrays

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        self._seen = IdSet(np.array(arrays["seen"]))
        for name, queue in self._queues.items():
            keys = ("features", "labels", "entropies", "ids", "extra")
            queue.restore({key: arrays[f"{name}.{key}"] for key in keys})

    def _offer(self, name: str, clip: Clip, ids: np.ndarray, rows: np.ndarray) -> None:
        """Offer some rows of a batch to a queue."""
        queue = self._queues[name]
        queue.offer(
            clip.labels[rows],
            clip.entropies[rows],
            ids[rows],
            lambda some: to_host(clip.features[rows[some]]),
            (lambda some: self._extra(clip, rows[some])) if queue.extra_width else None,
        )

    def _extra(self, clip: Clip, rows: np.ndarray) -> np.ndarray:
        """(m, e) bytes to keep with each of some rows, for queues that have room for them."""
        return np.empty((len(rows), 0), np.uint8)

    @abstractmethod
    def _empty_queues(self) -> dict[str, EntropyQueue]:
        """New queues for these classes."""

    @abstractmethod
    def _learn(self, clip: Clip, ids: np.ndarray, rows: np.ndarray) -> None:
        """Offer some rows of a batch, all of them new, to the queues, and count them."""

    def _settle(self) -> None:
        """Bring up to date what depends on the queues, after they were replaced."""


class PrototypeAdapter(StreamAdapter):
    """One queue, and statistics of it that refresh on a schedule: NCM, SOBA and their kin.

    `statistics_` is a pure function of the queue at the last refresh: name -> array; None
    before the first one and while the queue holds too little, and then the answer is CLIP's.
    """

    capacity: int | None
    refresh: Refresh
    total: int | None
    max_gap: int | None

    @property
    def queue(self) -> EntropyQueue:
        return self._queues["queue"]

    @property
    def _growth(self) -> dict[str, int | None]:
        """What of the schedule is not the usual: `first`, `percent`, `max_gap`."""
        return {}

    def _empty_queues(self) -> dict[str, EntropyQueue]:
        queue = EntropyQueue(self.classes, self.width, self.capacity, twin_tolerance=TWIN_TOLERANCE)
        return {"queue": queue}

    def _reset(self) -> None:
        super()._reset()
        self._schedule = Schedule(
            self.refresh,
            classes=self.classes,
            total=self.total,
            **{"max_gap": self.max_gap} | self._growth,
        )
        self._due = self._schedule.next_after(0)
        self.statistics_: dict[str, np.ndarray] | None = None

    def _adapt(self, batch: Batch, ids: np.ndarray | None) -> Array:
        clip = self._clip(batch)
        ids, fresh = self._number(ids, len(batch))
        scored = learned = 0  # rows scored so far, and new rows learned so far
        while self._due is not None and self._due - self.count <= len(fresh) - learned:
            # The refresh falls on a row of this batch: that row is scored after it.
            reach = learned + self._due - self.count
            boundary = int(fresh[reach - 1])
            self._learn(clip, ids, fresh[learned:reach])  # first: scoring overwrites CLIP's logits
            self._add_scores(batch, clip, scored, boundary)
            self._settle()
            scored, learned = boundary, reach
        self._learn(clip, ids, fresh[learned:])
        self._add_scores(batch, clip, scored, len(batch))
        return clip.logits

    def _predict(self, batch: Batch) -> Array:
        features, logits = self._clip_logits(batch)
        nothing = np.empty(0)
        clip = Clip(features, logits, nothing, nothing, nothing, None)
        self._add_scores(batch, clip, 0, len(batch))
        return clip.logits

    def _learn(self, clip: Clip, ids: np.ndarray, rows: np.ndarray) -> None:
        if len(rows):
            self._offer("queue", clip, ids, rows)
            self._seen.add(ids[rows])

    def _settle(self) -> None:
        """Refresh the statistics now."""
        found = self._statistics()
        # In one memory layout, as a state file gives it back: products round by layout.
        self.statistics_ = found and {k: np.ascontiguousarray(a) for k, a in found.items()}
        self._due = self._schedule.next_after(self.count)

    def _take_over(self, other: Self) -> None:
        super()._take_over(other)
        if other.statistics_ is None:  # no refresh yet, or too little: the schedule decides
            self.statistics_ = None

    def _add_scores(self, batch: Batch, clip: Clip, start: int, stop: int) -> None:
        """Add the adapter's logits to CLIP's for some rows, a block at a time."""
        if self.statistics_ is None or start >= stop:
            return
        step = max(64, (1 << 20) // self.classes)
        for at in range(start, stop, step):
            end = min(at + step, stop)
            block = clip.logits[at:end, :]
            block += self._score(batch, clip.features[at:end, :])
            if "temperature" in self.statistics_:
                block /= float(self.statistics_["temperature"][0])

    @abstractmethod
    def _statistics(self) -> dict[str, np.ndarray] | None:
        """What scoring needs, from the queue alone; None where it holds too little."""

    @abstractmethod
    def _score(self, batch: Batch, features: Array) -> Array:
        """(m, d) features -> (m, C) adapter logits under `statistics_`."""

    def _statistic(self, name: str, batch: Batch) -> Array:
        assert self.statistics_ is not None
        return self._mirror(name, self.statistics_[name], batch)

    def _spread(self, seen: np.ndarray, prototypes: np.ndarray) -> dict[str, np.ndarray]:
        """Prototypes of the seen classes, laid out for all of them.

        A class without samples gets the mean of the others' logits; under a linear score that is
        the score of their mean prototype.
        """
        spread = np.empty((self.classes, self.width), np.float32)
        spread[:] = prototypes.mean(axis=0)
        spread[seen] = prototypes
        mask = np.zeros(self.classes, bool)
        mask[seen] = True
        return {"prototypes": spread, "seen": mask}

    def _linear(self, batch: Batch, query: Array) -> Array:
        """<query, prototype> of every class."""
        return query @ self._statistic("prototypes", batch).T

    def _nearness(self, batch: Batch, query: Array, metric: str) -> Array:
        """Minus the distance to every prototype, unseen classes at the mean of the seen."""
        scores = -distances(batch, query, self._statistic("prototypes", batch), metric)
        seen = self._statistic("seen", batch)
        scores[:, ~seen] = batch.xp.mean(scores[:, seen], axis=-1, keepdims=True)
        return scores

    def _arrays(self) -> dict[str, np.ndarray]:
        statistics = self.statistics_ or {}
        return super()._arrays() | {f"statistics.{k}": v for k, v in statistics.items()}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        super()._restore(arrays, meta)
        prefix = "statistics."
        found = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
        self.statistics_ = found or None
        self._due = self._schedule.next_after(self.count)


def _refuse_conflicts(one: EntropyQueue, other: EntropyQueue) -> None:
    """Raise if one id names two different samples: shards that both counted from 0."""
    a, b = one.items(), other.items()
    common, left, right = np.intersect1d(a.ids, b.ids, return_indices=True)
    if len(common) == 0:
        return
    gap = np.abs(a.features[left] - b.features[right]).max(axis=1)
    if (gap > 1e-3).any():
        raise ValueError(
            f"id {common[np.argmax(gap)]} names different samples in the two adapters: "
            "give each shard ids of its own"
        )
