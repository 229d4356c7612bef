"""Samples that wait to be learned: those of several callers become one batch, and one entry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from soba._answering import first_of_each
from soba.adapt._arrays import read_batch, to_host
from soba.adapt._gathering import OTHER_SAMPLE, other_samples, stores_of
from soba.serve.digests import DIGEST, comparable, differ, digests_of_features, digests_of_images
from soba.serve.learned import Learned
from soba.serve.names import ids_of_features, ids_of_names
from soba.serve.stream_state import StreamState

if TYPE_CHECKING:
    from soba.encode.features import Encoded
    from soba.serve.replica import View


@dataclass
class Learning:
    """Samples of one caller, and what came of them."""

    rows: np.ndarray  # (n, d) float32 unit rows
    ids: np.ndarray  # (n,)
    digests: np.ndarray  # (n,) of what the ids name; 0: the id is a hash of it
    required: bool = False  # learned or refused; others are scored if the stream is frozen
    logits: np.ndarray = field(init=False)
    single: bool = False  # a row (d,) was given
    learned: int = 0  # samples that were new
    problem: ValueError | None = None
    view: View = field(init=False)  # the stream when they were learned
    commit_seconds: float = 0.0
    refresh_seconds: float = 0.0  # of learning and refreshing, where a refresh fell into it

    @property
    def size(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, features: Any, ids: Any, dim: int, *, required: bool) -> Learning:
        """What a caller gave, checked: nobody else's samples are held up by bad ones."""
        batch = read_batch(features, dim)
        if batch.views:
            raise ValueError(f"a durable stream takes a row a sample, (n, {dim}), not views")
        rows = np.asarray(to_host(batch.x), np.float32)
        if ids is None:
            numbers, digests = ids_of_features(rows), np.zeros(len(rows), DIGEST)
        else:
            numbers, digests = ids_of_names(ids), digests_of_features(rows)
        if len(numbers) != len(rows):
            raise ValueError(f"{len(numbers)} ids for {len(rows)} samples")
        return cls(rows, numbers, digests, required, batch.single)

    @classmethod
    def of_images(cls, part: Encoded, called: list[str | int] | None) -> Learning:
        """Images of a batch, by what the client calls them or else by their content."""
        ids = np.array([picture.content_id for picture in part.read], np.int64)
        digests = np.zeros(len(ids), DIGEST)
        if called is not None:
            digests = digests_of_images(ids)
            ids = ids_of_names([called[index - part.start] for index in part.indices])
        return cls(np.asarray(part.features, np.float32), ids, digests)


def learn_together(state: StreamState, group: list[Learning]) -> Learned | None:
    """Learn what a group of callers brought, in their order, and score it; None: nothing was new.

    A caller whose ids name other samples than before is left out, and told so.
    """
    if state.frozen:
        predictor = state.predictor()
        for learning in group:
            learning.logits = np.asarray(predictor.logits(learning.rows))
            if learning.required:
                learning.problem = ValueError("the stream is frozen: it learns nothing")
        return None
    joined = _Joined.of(group, state.adapter.dim)
    while (row := joined.first_conflict(state)) is not None:
        joined = joined.without(row)
    first, place = first_of_each(joined.ids)
    logits, delta = state.adapter.adapt_changes(joined.rows[first], ids=joined.ids[first])
    fresh = first[np.isin(joined.ids[first], delta.ids)]  # in the order they were learned in
    learned = Learned(delta, joined.digests[fresh])
    state.learned(learned)
    new = np.zeros(len(joined.ids), bool)
    new[fresh] = True
    start = 0
    for learning in joined.group:
        mine = slice(start, start + learning.size)
        learning.logits, learning.learned = logits[place[mine]], int(new[mine].sum())
        start = mine.stop
    return learned if len(learned) else None


@dataclass
class _Joined:
    """The samples of several callers, one after the other."""

    group: list[Learning]
    rows: np.ndarray
    ids: np.ndarray
    digests: np.ndarray

    @classmethod
    def of(cls, group: list[Learning], dim: int) -> _Joined:
        rows = [np.empty((0, dim), np.float32), *(learning.rows for learning in group)]
        ids = [np.empty(0, np.int64), *(learning.ids for learning in group)]
        digests = [np.empty(0, DIGEST), *(learning.digests for learning in group)]
        return cls(group, *map(np.concatenate, (rows, ids, digests)))

    def first_conflict(self, state: StreamState) -> int | None:
        """The first row that has the name of another sample: one before it, or a known one."""
        named = np.flatnonzero(self.digests)  # all others are called by what they are
        wrong = self._unlike_the_first(named)
        known = np.flatnonzero(~state.adapter._seen.unknown(self.ids[named]))
        if len(known):
            wrong[known] |= self._unlike_the_known(state, named[known])
        return int(named[wrong.argmax()]) if wrong.any() else None

    def _unlike_the_first(self, rows: np.ndarray) -> np.ndarray:
        """(n,) bool: which of some rows are other samples than the first of their name."""
        first, place = first_of_each(self.ids[rows])
        if len(first) == len(rows):
            return np.zeros(len(rows), bool)
        before = rows[first[place]]
        one, other = self.digests[rows], self.digests[before]
        gap = np.abs(self.rows[rows] - self.rows[before]).max(axis=1)
        # An image and features that were made of it can be told apart by the features alone.
        return np.where(comparable(one, other), differ(one, other), gap > OTHER_SAMPLE)

    def _unlike_the_known(self, state: StreamState, rows: np.ndarray) -> np.ndarray:
        """(n,) bool: which of some rows, whose ids are known, are other samples than those."""
        told, given = state.digests_of(self.ids[rows]), self.digests[rows]
        wrong = differ(told, given)
        untold = np.flatnonzero(~comparable(told, given))
        if len(untold):  # of the ids that a classifier brought, only the kept samples tell more
            kept, some = stores_of(*state.adapter._kept()[:2]), rows[untold]
            wrong[untold] = other_samples(kept, self.ids[some], self.rows[some])
        return wrong

    def without(self, row: int) -> _Joined:
        """Without the caller whose row this is, who is told why."""
        ends = np.cumsum([learning.size for learning in self.group])
        caller = int(np.searchsorted(ends, row, side="right"))
        refused = self.group[caller]
        place = row - int(ends[caller]) + refused.size
        refused.problem = ValueError(
            f"sample {place} comes under the id of another sample: an id names one sample"
        )
        others = [learning for learning in self.group if learning is not refused]
        return _Joined.of(others, self.rows.shape[1])
