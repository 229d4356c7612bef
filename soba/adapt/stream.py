"""What the queue methods share: samples counted once, learned in order, merged between shards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt._arrays import Array, Batch, ClipScores, read_ids, score_with_clip
from soba.adapt._gathering import Gathering
from soba.adapt._ids import SeenIds
from soba.adapt.base import Adapter
from soba.adapt.exchange import ExchangesDeltas
from soba.adapt.queue import EntropyQueue, Members
from soba.adapt.sample import Sampled, UniformSample

_LEAST_ROWS, _BLOCK_LOGITS = 256, 1 << 20  # of what is learned from at a time
TWIN_TOLERANCE = 1e-4  # far above the rounding of an entropy, far below what tells images apart


class StreamAdapter(ExchangesDeltas):
    """An adapter that remembers some samples of its stream: in entropy queues, or by chance."""

    _stored_as: ClassVar[Mapping[str, str]] = {"refresh": "refresh_rule"}  # refresh is a verb

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

        What is kept is what `adapt` keeps of the same samples. Refreshes that fall due on the
        way are left to `refresh`, and the schedule goes on from there.

        Examples
        --------
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

    def refresh(self) -> Self:
        """Make the statistics anew now, of what is kept; a method without any has nothing to do."""
        with self._lock:
            self._settle()
        return self

    def merge(self, *others: Self) -> Self:
        """Take in what other adapters of the same kind learned from other samples.

        What is kept is what a single adapter keeps that saw all streams, in any order, and the
        statistics are made anew of it at the end. So however the same shards are merged, the
        results are equal. Only what a method makes of time differs from the single adapter: shards
        have no common time, so a sample that is drawn by chance keeps its place in the stream of
        its shard, the earliest where several saw it (SOBA+ weighs its class prior by these places).

        Give each shard ids of its own; a sample that several saw counts once. Adapters whose ids
        are of different spaces are refused, and so are two that both numbered their samples
        themselves: the same number would name two samples. An id that names two samples is refused
        where both are still kept. Changes this adapter only; without others, nothing. Some methods
        cannot merge, and say why.

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

    def _check_merges(self) -> None:
        """Raise ValueError where what such an adapter knows cannot be merged."""

    def _check_same_setup(self, other: Adapter) -> None:
        if type(other) is not type(self) or other.params != self.params:
            raise ValueError(f"cannot merge {other!r} into {self!r}: they are set up differently")
        if not np.array_equal(other.text_features, self.text_features):
            raise ValueError("cannot merge adapters with different text features")

    def _stored(
        self, arrays: dict[str, np.ndarray], meta: dict[str, Any]
    ) -> tuple[dict[str, Members], dict[str, Sampled], SeenIds]:
        """The same of a state of such an adapter, checked; features stay in its arrays."""
        seen = SeenIds.restored(arrays, meta)
        queues, samples = {}, {}
        for name, queue in self._queues.items():
            queues[name] = queue.check(_part(arrays, name, queue)).members()
            self._check_extra(arrays[f"{name}.extra"])
        for name, sample in self._samples.items():
            samples[name] = sample.check(_part(arrays, name, sample))
        for name in self._stores:
            self._check_counted(seen, name, arrays)
        return queues, samples, seen

    def _take_gathered(self, gathering: Gathering) -> None:
        self._queues, self._samples = gathering.queues, gathering.samples
        self._seen = gathering.seen
        self._settle()

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
        for name, sample in self._samples.items():
            sample.merge(other._samples[name].items())
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

    @abstractmethod
    def _empty_queues(self) -> dict[str, EntropyQueue]:
        """New queues for these classes."""

    def _empty_samples(self) -> dict[str, UniformSample]:
        """New uniform samples, for methods that keep any; their names are not those of queues."""
        return {}

    def _settle(self) -> None:
        """Bring up to date what depends on the samples that are kept."""

    def _reschedule(self) -> None:
        """Go on to the first refresh after the samples learned so far."""


def _part(
    arrays: dict[str, np.ndarray], name: str, store: EntropyQueue | UniformSample
) -> dict[str, np.ndarray]:
    """The arrays of one place where samples are kept."""
    return {key: arrays[f"{name}.{key}"] for key in store.arrays()}
