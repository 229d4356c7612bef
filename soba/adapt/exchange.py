"""What the adapters can do that keep samples: say what a call changed, and take in such changes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt._absorbing import Arrival, Carried, arrivals
from soba.adapt._arrays import Array, Batch, ClipScores, read_ids, to_host
from soba.adapt._gathering import stores_of
from soba.adapt._ids import SeenIds
from soba.adapt._recording import Recorder
from soba.adapt.base import Adapter
from soba.adapt.delta import Delta, fingerprint
from soba.adapt.queue import EntropyQueue, Fetch, Members
from soba.adapt.sample import PLACE_WIDTH, Sampled, UniformSample, place_bytes, places_of


class ExchangesDeltas(Adapter):
    """Queues, uniform samples and the ids behind them, which replicas keep alike by deltas.

    Whatever enters a queue or a sample goes through `_offer` and `_draw`, so that a call can write
    down what it changes, and so that what a delta carries goes the same way.
    """

    keeps_samples: ClassVar[bool] = True  # else it neither merges nor learns again under other text

    _seen: SeenIds
    _queues: dict[str, EntropyQueue]
    _samples: dict[str, UniformSample]
    _recorder: Recorder | None = None  # while a call wants to know what it changes
    _fingerprint: str | None = None

    @property
    def n_seen(self) -> int:
        """How many different samples were learned from; forgotten ids count."""
        return len(self._seen)

    def adapt_changes(self, features: Array, *, ids: Any = None) -> tuple[Array, Delta]:
        """As `adapt`, and what was learned, for other adapters to `absorb`."""
        batch = self._read(features)
        checked = None if ids is None else read_ids(ids, len(batch))
        with self._lock:
            logits, delta = self._changes(self._adapt, batch, checked, refreshes=True)
        return batch.unwrap(logits), delta

    def learn_changes(self, features: Array, *, ids: Any = None) -> Delta:
        """As `learn`, and what was learned, for other adapters to `absorb`."""
        batch = self._read(features)
        checked = None if ids is None else read_ids(ids, len(batch))
        with self._lock:
            return self._changes(self._learn_all, batch, checked, refreshes=False)[1]

    def absorb(self, *deltas: Delta) -> Self:
        """Take in what other adapters of the same set-up learned, and compute nothing for it.

        What of the samples is known already changes nothing (but that of its places in the stream
        the earliest counts), so deltas may come twice, and for what is kept, and for the ids, their
        order is nothing either. Statistics refresh where the
        schedule has it, as if the samples were learned here: at the boundaries that lie within
        deltas of `adapt_changes`, and at none within those of `learn_changes`. So adapters that
        were equal and then take the same deltas in the same order are equal to the bit, whichever
        of the deltas each of them made itself and however many it absorbed at a time. (A call of
        `refresh` is in no delta.)

        A delta of another method, of other parameters, text or id space is refused, and so is an
        id that names two samples where both are at hand; then nothing has changed. Samples that
        came without ids are absorbed in the order they were counted in. With a horizon samples age
        in the order they are absorbed in, so that there, order is something.

        Examples
        --------
        >>> from soba import SOBAPlus
        >>> from soba.testing import example_stream
        >>> stream, labels, text = example_stream()
        >>> one, other = SOBAPlus(text, logit_scale=20.0), SOBAPlus(text, logit_scale=20.0)
        >>> logits, delta = one.adapt_changes(stream, ids=range(240))
        >>> bool((other.absorb(delta).logits(stream) == one.logits(stream)).all())
        True
        """
        self._check_keeps()
        setup = self._setup()
        for delta in deltas:
            self._check_delta(delta, setup)
        with self._lock:
            new = arrivals(self._seen, lambda: stores_of(*self._kept()[:2]), deltas)
            if new and new[0].id_space not in ("count", "given"):
                self._seen.call_given(new[0].id_space)
            self._absorb(new)
        return self

    def forget_ids(self, ids: Any) -> np.ndarray:
        """Know some ids no longer: their samples are new if they come again.

        A sample that is kept in a queue or by chance stays known; the ids of such are given back.
        `n_seen` stays. So the memory for ids can be bounded: O(all known ids) a call, so forget
        many at a time. Of adapters that forgot ids, `merge` cannot tell which they had in common,
        and counts the larger number of the two besides the ids that either knows.

        Examples
        --------
        >>> from soba import NCM
        >>> ncm = NCM(np.eye(2), capacity=1)
        >>> ncm.learn(np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2]]), ids=[3, 4, 5])
        >>> ncm.forget_ids([3, 4]).tolist(), ncm.n_seen
        ([3], 3)
        """
        given = read_ids(ids, len(ids))
        with self._lock:
            held = np.isin(given, self._kept_ids())
            self._seen.forget(given[~held])
        return given[held]

    def bound_ids(self, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Know the largest given ids only, so many at the most, and those of kept samples.

        The ones and, of the others, those of kept samples, ascending. `n_seen` stays. It takes no
        more memory than what stays known, however many ids lie in long intervals.

        Examples
        --------
        >>> from soba import NCM
        >>> ncm = NCM(np.eye(2), capacity=1)
        >>> ncm.learn(np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2]]), ids=[3, 4, 5])
        >>> ncm.bound_ids(1), ncm.n_seen
        ((array([5]), array([3])), 3)
        """
        with self._lock:
            last = self._seen.given.largest(most)
            kept = self._kept_ids()
            held = np.setdiff1d(kept[kept >= 0], last)
            self._seen.keep(np.append(held, last))
        return last, held

    def _changes(
        self,
        learn: Callable[[Batch, np.ndarray | None], Array],
        batch: Batch,
        ids: np.ndarray | None,
        *,
        refreshes: bool,
    ) -> tuple[Array, Delta]:
        """What some way to learn gives, and what it put into queues, samples and ids."""
        self._check_keeps()
        space = "count" if ids is None else self._seen.given_space or "given"
        self._seen.check_space(space)  # or nobody could absorb it
        recorder, known = Recorder(self.dim), self.n_seen
        self._recorder = recorder
        try:
            given = learn(batch, ids)
        finally:
            self._recorder = None
        if len(recorder) != self.n_seen - known:
            raise TypeError(f"{self.name} learns samples without _count, so there is no delta")
        return given, recorder.delta(self._setup(), space, refreshes=refreshes)

    def _setup(self) -> str:
        """The fingerprint of all that decides what is kept, and how it is scored."""
        if self._fingerprint is None:  # of what no call changes
            self._fingerprint = fingerprint(self.name, self.params, self._given_text)
        return self._fingerprint

    def _check_keeps(self) -> None:
        """Raise ValueError where such an adapter keeps no samples to hand on."""
        if not self.keeps_samples:
            raise ValueError(
                f"{self.name} keeps sums and no samples, so that nothing can be handed on"
            )

    def _check_delta(self, delta: Delta, setup: str) -> None:
        """Raise if a delta cannot be of an adapter with this set-up."""
        if not isinstance(delta, Delta):
            raise TypeError(f"absorb takes deltas, not {type(delta).__name__}")
        if delta.setup != setup:
            raise ValueError(f"a delta of another method, set-up or text than {self!r}")
        if delta.features.shape[1] != self.dim or (delta.labels >= self.n_classes).any():
            raise ValueError(f"a delta of other classes or dimensions than {self!r}")
        for name, extra in delta.extra.items():
            width = self._queues[name].extra_width if name in self._queues else PLACE_WIDTH
            if name not in self._stores or extra.shape[1] != width:
                raise ValueError(f"a delta for a {name} that {self!r} does not have")
            if name in self._queues:
                self._check_extra(extra)
            elif (places_of(extra) < 0).any():
                raise ValueError("a delta with a place before the stream began")

    def _absorb(self, new: list[Arrival]) -> None:
        """Learn what deltas bring, piece by piece; refresh where one falls due."""
        for arrival in new:
            self._see(arrival)
            for rows in arrival.pieces:
                self._learn(arrival.carried, arrival.ids, rows)

    def _kept(self) -> tuple[dict[str, Members], dict[str, Sampled], SeenIds]:
        """What there is to merge; features stay where they are, so it serves under the lock."""
        return (
            {name: queue.members() for name, queue in self._queues.items()},
            {name: sample.held() for name, sample in self._samples.items()},
            self._seen,
        )

    def _kept_ids(self) -> np.ndarray:
        """The ids of the samples in queues and uniform samples; some are there twice."""
        queued = [queue.ids[queue.filled] for queue in self._queues.values()]
        drawn = [sample.ids[: len(sample)] for sample in self._samples.values()]
        return np.concatenate([np.empty(0, np.int64), *queued, *drawn])

    @property
    def _stores(self) -> dict[str, EntropyQueue | UniformSample]:
        """Wherever samples are kept, by name."""
        return {**self._queues, **self._samples}

    def _offer(self, name: str, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        """Offer some rows of a batch to a queue."""
        queue, offered = self._queues[name], self._members(name, clip, ids, rows)
        if self._recorder is not None:
            offered = self._recorder.to_queue(name, queue, offered)
        if len(offered.ids):
            extra = offered.extra if queue.extra_width else None
            queue.offer(offered.labels, offered.entropies, offered.ids, offered.features, extra)

    def _draw(self, name: str, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        """Offer some rows of a batch, which come next in the stream, to a uniform sample."""
        sample, first = self._samples[name], self.n_seen
        offered = self._members(name, clip, ids, rows, lambda some: place_bytes(first + some))
        if self._recorder is not None:
            offered = self._recorder.to_sample(name, sample, offered)
        if len(offered.ids):
            places = places_of(offered.extra(np.arange(len(offered.ids))))
            sample.offer(offered.ids, places, offered.features)

    def _see(self, arrival: Arrival) -> None:
        """Of images that two learners saw, the earlier place counts, whoever is heard first."""
        if len(arrival) == len(arrival.ids):  # all of it is new
            return
        for name in self._samples:
            members = arrival.carried.members(name, arrival.ids, np.arange(len(arrival.ids)))
            if len(members.ids):
                places = places_of(members.extra(np.arange(len(members.ids))))
                for sample in self._samples.values():  # it may have aged into another one
                    sample.see(members.ids, places)

    def _members(
        self,
        name: str,
        clip: ClipScores,
        ids: np.ndarray,
        rows: np.ndarray,
        extra: Fetch | None = None,
    ) -> Members:
        """What there is to offer: some rows of a batch, or what a delta carries of them."""
        if isinstance(clip, Carried):
            return clip.members(name, ids, rows)
        return Members(
            clip.labels[rows],
            clip.entropies[rows],
            ids[rows],
            lambda some: to_host(clip.features[rows[some]]),
            extra or (lambda some: self._extra(clip, rows[some])),
        )

    def _count(self, ids: np.ndarray) -> None:
        """Count new samples as learned from: once for each, after it was offered."""
        self._seen.add(ids)
        if self._recorder is not None:
            self._recorder.count(ids)

    def _extra(self, clip: ClipScores, rows: np.ndarray) -> np.ndarray:
        """(m, e) bytes to keep with each of some rows, for queues that have room for them."""
        return np.empty((len(rows), 0), np.uint8)

    def _check_extra(self, extra: np.ndarray) -> None:
        """Raise if stored bytes cannot be what `_extra` keeps with samples."""

    @abstractmethod
    def _learn_all(self, batch: Batch, ids: np.ndarray | None) -> None:
        """Learn a batch block by block, and leave refreshes out."""

    @abstractmethod
    def _learn(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        """Offer some rows of a batch, all of them new, to queues and samples, and count them.

        By `_offer`, `_draw` and `_count`, and by nothing of `clip` but labels and entropies: rows
        of a delta have no more than these, and NaN for an entropy where they entered nothing.
        """
