"""Samples that wait to be learned: those of several callers become one batch, and one entry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from soba._answering import first_of_each
from soba.adapt._arrays import read_batch, to_host
from soba.adapt._gathering import OTHER_SAMPLE, other_samples, stores_of
from soba.adapt.delta import Delta
from soba.adapt.stream import StreamAdapter
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
        numbers = ids_of_features(rows) if ids is None else ids_of_names(ids)
        if len(numbers) != len(rows):
            raise ValueError(f"{len(numbers)} ids for {len(rows)} samples")
        return cls(rows, numbers, required, batch.single)

    @classmethod
    def of_images(cls, part: Encoded, called: list[str | int] | None) -> Learning:
        """Images of a batch, by what the client calls them or else by their content."""
        if called is None:
            ids = np.array([picture.content_id for picture in part.read], np.int64)
        else:
            ids = ids_of_names([called[index - part.start] for index in part.indices])
        return cls(np.asarray(part.features, np.float32), ids)


def learn_together(state: StreamState, group: list[Learning]) -> Delta | None:
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
    while (row := joined.first_conflict(state.adapter)) is not None:
        joined = joined.without(row)
    first, place = first_of_each(joined.ids)
    logits, delta = state.adapter.adapt_changes(joined.rows[first], ids=joined.ids[first])
    state.learned(delta.ids)
    new = np.zeros(len(joined.ids), bool)
    new[first] = np.isin(joined.ids[first], delta.ids)
    start = 0
    for learning in joined.group:
        mine = slice(start, start + learning.size)
        learning.logits, learning.learned = logits[place[mine]], int(new[mine].sum())
        start = mine.stop
    return delta if len(delta) else None


@dataclass
class _Joined:
    """The samples of several callers, one after the other."""

    group: list[Learning]
    rows: np.ndarray
    ids: np.ndarray

    @classmethod
    def of(cls, group: list[Learning], dim: int) -> _Joined:
        rows = [np.empty((0, dim), np.float32), *(learning.rows for learning in group)]
        ids = [np.empty(0, np.int64), *(learning.ids for learning in group)]
        return cls(group, np.concatenate(rows), np.concatenate(ids))

    def first_conflict(self, adapter: StreamAdapter) -> int | None:
        """The first row that has the id of another sample: one before it, or one that is kept."""
        first, place = first_of_each(self.ids)
        wrong = np.zeros(len(self.ids), bool)
        if len(first) < len(self.ids):
            gap = np.abs(self.rows - self.rows[first][place]).max(axis=1)
            wrong = gap > OTHER_SAMPLE
        known = np.flatnonzero(~adapter._seen.unknown(self.ids))
        if len(known):
            kept = stores_of(*adapter._kept()[:2])
            wrong[known] |= other_samples(kept, self.ids[known], self.rows[known])
        return int(wrong.argmax()) if wrong.any() else None

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
