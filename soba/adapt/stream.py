"""What the queue methods share: samples counted once, learned in order, merged between shards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt._absorbing import Arrival, Carried, arrivals
from soba.adapt._arrays import Array, Batch, ClipScores, read_ids, score_with_clip, to_host
from soba.adapt._gathering import Gathering, stores_of
from soba.adapt._ids import SeenIds
from soba.adapt._recording import Recorder
from soba.adapt.base import Adapter
from soba.adapt.delta import Delta, fingerprint, text_digest
from soba.adapt.queue import EntropyQueue, Members
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
    _recorder: Recorder | None = None  # while a call wants to know what it changes
    _text_digest: str | None = None

    @property
    def n_seen(self) -> int:
        """How many different samples were learned from; forgotten ids count."""
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
            self._learn_all(batch, checked)

    def adapt_changes(self, features: Array, *, ids: Any = None) -> tuple[Array, Delta]:
        """As :meth:`adapt`, and what was learned, for other adapters to :meth:`absorb`."""
        batch = self._read(features)
        checked = None if ids is None else read_ids(ids, len(batch))
        with self._lock:
            logits, delta = self._changes(self._adapt, batch, checked, refreshes=True)
        return batch.unwrap(logits), delta

    def learn_changes(self, features: Array, *, ids: Any = None) -> Delta:
        """As :meth:`learn`, and what was learned, for other adapters to :meth:`absorb`."""
        batch = self._read(features)
        checked = None if ids is None else read_ids(ids, len(batch))
        with self._lock:
            return self._changes(self._learn_all, batch, checked, refreshes=False)[1]

    def absorb(self, *deltas: Delta) -> Self:
        """Take in what other adapters of the same set-up learned, and compute nothing for it.

        What of the samples is known already changes nothing, so deltas may come twice, and for
        what is kept, and for the ids, their order is nothing either. Statistics refresh where the
        schedule has it, as if the samples were learned here: at the boundaries that lie within
        deltas of `adapt_changes`, and at none within those of `learn_changes`. So adapters that
        were equal and then take the same deltas in the same order are equal to the bit, whichever
        of the deltas each of them made itself and however many it absorbed at a time. (A call of
        :meth:`refresh` is in no delta.)

        A delta of another method, of other parameters, text or id space is refused, and so is an
        id that names two samples where both are at hand; then nothing has changed. Samples that
        came without ids are absorbed in the order they were counted in.

        >>> from soba import SOBAPlus
        >>> from soba.testing import example_stream
        >>> stream, labels, text = example_stream()
        >>> one, other = SOBAPlus(text, logit_scale=20.0), SOBAPlus(text, logit_scale=20.0)
        >>> logits, delta = one.adapt_changes(stream, ids=range(240))
        >>> bool((other.absorb(delta).logits(stream) == one.logits(stream)).all())
        True
        """
        self._check_keeps()
        for delta in deltas:
            self._check_delta(delta)
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

        >>> from soba import NCM
        >>> ncm = NCM(np.eye(2), capacity=1)
        >>> ncm.learn(np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2]]), ids=[3, 4, 5])
        >>> ncm.forget_ids([3, 4]).tolist(), ncm.n_seen
        ([3], 3)
        """
        given = read_ids(ids, len(ids))
        with self._lock:
            queued = [queue.ids[queue.filled] for queue in self._queues.values()]
            drawn = [sample.ids[: len(sample)] for sample in self._samples.values()]
            held = np.isin(given, np.concatenate([given[:0], *queued, *drawn]))
            self._seen.forget(given[~held])
        return given[held]

    def refresh(self) -> Self:
        """Make the statistics anew now, of what is kept; a method without any has nothing to do."""
        with self._lock:
            self._settle()
        return self

    def merge(self, *others: Self) -> Self:
        """Take in what other adapters of the same kind learned from other samples.

        The result is the one of a single adapter that saw all streams, in any order, refreshed at
        the end. Give each shard ids of its own; a sample that several saw counts once. Adapters
        whose ids are of different spaces are refused, and so are two that both numbered their
        samples themselves: the same number would name two samples. An id that names two samples
        is refused where both are still kept. Changes this adapter only; without others, nothing.
        Some methods cannot merge, and say why.

        O(n log n) for n samples in all; besides the adapters it takes the memory of one more.
        """
        self._check_merges()
        for other in others:
            self._check_same_setup(other)
        if not others:
            return self
        gathering = Gathering(self._empty_queues(), self._empty_samples())
        for adapter in others:
            with adapter._lock:  # let go before our own is taken: two may merge into each other
                gathering.take_in(*adapter._kept())
        with self._lock:
            gathering.take_in(*self._kept())
            self._take_gathered(gathering)
        return self

    def _learn_all(self, batch: Batch, ids: np.ndarray | None) -> None:
        """Learn a batch block by block, and leave refreshes out."""
        numbered, fresh = self._seen.number(ids, len(batch))
        step = max(_LEAST_ROWS, _BLOCK_LOGITS // self.n_classes)
        for start in range(0, len(fresh), step):
            rows = fresh[start : start + step]
            clip = self._clip(Batch(batch.xp, batch.x[rows, ...], False))
            self._learn(clip, numbered[rows], np.arange(len(rows)))
        self._reschedule()

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
        self._recorder, known = Recorder(), self.n_seen
        try:
            given = learn(batch, ids)
            delta = self._recorder.delta(self._setup(), space, refreshes=refreshes)
        finally:
            self._recorder = None
        if len(delta) != self.n_seen - known:
            raise TypeError(f"{self.name} learns samples without _count, so there is no delta")
        return given, delta

    def _setup(self) -> str:
        """The fingerprint of all that decides what is kept, and how it is scored."""
        if self._text_digest is None:
            self._text_digest = text_digest(self._given_text)
        return fingerprint(self.name, self.params, self._text_digest)

    def _check_keeps(self) -> None:
        """Raise ValueError where such an adapter keeps no samples to hand on."""
        if not self.keeps_samples:
            raise ValueError(
                f"{self.name} keeps sums and no samples, so that nothing can be handed on"
            )

    def _check_delta(self, delta: Delta) -> None:
        """Raise if a delta cannot be of an adapter with this set-up."""
        if not isinstance(delta, Delta):
            raise TypeError(f"absorb takes deltas, not {type(delta).__name__}")
        if delta.setup != self._setup():
            raise ValueError(f"a delta of another method, set-up or text than {self!r}")
        if delta.features.shape[1] != self.dim or (delta.labels >= self.n_classes).any():
            raise ValueError(f"a delta of other classes or dimensions than {self!r}")
        for name, extra in delta.extra.items():
            width = self._queues[name].extra_width if name in self._queues else 0
            if name not in self._stores or extra.shape[1] != width:
                raise ValueError(f"a delta for a {name} that {self!r} does not have")
            if name in self._queues:
                self._check_extra(extra)

    def _check_merges(self) -> None:
        """Raise ValueError where what such an adapter knows cannot be merged."""

    def _check_same_setup(self, other: Adapter) -> None:
        if type(other) is not type(self) or other.params != self.params:
            raise ValueError(f"cannot merge {other!r} into {self!r}: they are set up differently")
        if not np.array_equal(other.text_features, self.text_features):
            raise ValueError("cannot merge adapters with different text features")

    def _kept(self) -> tuple[dict[str, Members], dict[str, Sampled], SeenIds]:
        """What there is to merge; features stay where they are, so it serves under the lock."""
        return (
            {name: queue.members() for name, queue in self._queues.items()},
            {name: sample.items() for name, sample in self._samples.items()},
            self._seen,
        )

    def _stored(
        self, arrays: dict[str, np.ndarray], meta: dict[str, Any]
    ) -> tuple[dict[str, Members], dict[str, Sampled], SeenIds]:
        """The same of a state of such an adapter, checked; features stay in its arrays."""
        seen, samples = SeenIds.restored(arrays, meta), self._empty_samples()
        queues = {}
        for name, queue in self._queues.items():
            queues[name] = queue.check(_part(arrays, name, queue)).members()
            self._check_extra(arrays[f"{name}.extra"])
        for name, sample in samples.items():
            sample.restore(_part(arrays, name, sample))
        for name in self._stores:
            self._check_counted(seen, name, arrays)
        return queues, {name: sample.items() for name, sample in samples.items()}, seen

    def _take_gathered(self, gathering: Gathering) -> None:
        self._queues, self._samples = gathering.queues, gathering.samples
        self._seen = gathering.seen
        self._settle()

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
            store.restore(_part(arrays, name, store))
            self._check_counted(self._seen, name, arrays)
        for name in self._queues:
            self._check_extra(arrays[f"{name}.extra"])

    def _check_counted(self, seen: SeenIds, name: str, arrays: dict[str, np.ndarray]) -> None:
        if not seen.knows(arrays[f"{name}.ids"]):
            raise ValueError(f"the stored {name} holds samples that were never counted")

    def _check_extra(self, extra: np.ndarray) -> None:
        """Raise if stored bytes cannot be what :meth:`_extra` keeps with samples."""

    def _absorb(self, new: list[Arrival]) -> None:
        """Learn what deltas bring."""
        for arrival in new:
            for rows in arrival.pieces:
                self._learn(arrival.carried, arrival.ids, rows)

    def _offer(self, name: str, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        """Offer some rows of a batch to a queue."""
        queue, offered = self._queues[name], self._members(name, clip, ids, rows)
        if self._recorder is not None:
            offered = self._recorder.to_queue(name, queue, offered)
        if len(offered.ids):
            extra = offered.extra if queue.extra_width else None
            queue.offer(offered.labels, offered.entropies, offered.ids, offered.features, extra)

    def _draw(self, name: str, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        """Offer some rows of a batch to a uniform sample."""
        sample, offered = self._samples[name], self._members(name, clip, ids, rows)
        if self._recorder is not None:
            offered = self._recorder.to_sample(name, sample, offered)
        if len(offered.ids):
            sample.offer(offered.ids, offered.features)

    def _members(self, name: str, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> Members:
        """What there is to offer: some rows of a batch, or what a delta carries of them."""
        if isinstance(clip, Carried):
            return clip.members(name, ids, rows)
        return Members(
            clip.labels[rows],
            clip.entropies[rows],
            ids[rows],
            lambda some: to_host(clip.features[rows[some]]),
            lambda some: self._extra(clip, rows[some]),
        )

    def _count(self, ids: np.ndarray) -> None:
        """Count new samples as learned from: once for each, after it was offered."""
        self._seen.add(ids)
        if self._recorder is not None:
            self._recorder.count(ids)

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
        """Offer some rows of a batch, all of them new, to queues and samples, and count them.

        By `_offer`, `_draw` and `_count`, and by nothing of `clip` but labels and entropies: rows
        of a delta have no more than these, and NaN for an entropy where they entered nothing.
        """

    def _settle(self) -> None:
        """Bring up to date what depends on the samples that are kept."""

    def _reschedule(self) -> None:
        """Go on to the first refresh after the samples learned so far."""


def _part(
    arrays: dict[str, np.ndarray], name: str, store: EntropyQueue | UniformSample
) -> dict[str, np.ndarray]:
    """The arrays of one place where samples are kept."""
    return {key: arrays[f"{name}.{key}"] for key in store.arrays()}
