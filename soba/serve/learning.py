"""Samples that wait to be learned: those of several callers become one batch, and one entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from soba._answering import first_of_each
from soba.adapt._arrays import read_batch, to_host
from soba.adapt.delta import Delta
from soba.serve.names import ids_of_features, ids_of_names
from soba.serve.stream_state import StreamState

if TYPE_CHECKING:
    from soba.encode.features import Encoded
    from soba.serve.replica import View

# In any coordinate: encoders round by batch and machine, but by less.
_OTHER_SAMPLE = 1e-3


@dataclass
class Learning:
    """Samples of one caller, and what came of them."""

    rows: np.ndarray  # (n, d) float32 unit rows
    ids: np.ndarray  # (n,)
    required: bool = False  # to be learned, or refused; else a frozen stream scores them all the same
    logits: np.ndarray | None = None
    learned: int = 0  # samples that were new
    problem: ValueError | None = None
    view: View | None = None  # the stream when they were learned

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
        return cls(rows, numbers, required)

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
        for learning in group:
            if learning.required:
                learning.problem = ValueError("the stream is frozen: it learns nothing")
            else:
                learning.logits = np.asarray(state.adapter.logits(learning.rows))
        return None
    group = _consistent(state, group)
    rows = np.concatenate([np.empty((0, state.adapter.dim), np.float32), *(g.rows for g in group)])
    ids = np.concatenate([np.empty(0, np.int64), *(g.ids for g in group)])
    if not len(ids):
        for learning in group:
            learning.logits = np.empty((0, state.adapter.n_classes), np.float32)
        return None
    first, place = first_of_each(ids)
    logits, delta = state.adapter.adapt_changes(rows[first], ids=ids[first])
    state.learned(delta.ids)
    new = np.zeros(len(ids), bool)
    new[first] = np.isin(ids[first], delta.ids)
    start = 0
    for learning in group:
        mine = slice(start, start + learning.size)
        learning.logits, learning.learned = np.asarray(logits)[place[mine]], int(new[mine].sum())
        start = mine.stop
    return delta if len(delta) else None


def _consistent(state: StreamState, group: list[Learning]) -> list[Learning]:
    """Those of a group whose ids name one sample each; the others are told that theirs do not."""
    consistent: list[Learning] = []
    met: dict[int, np.ndarray] = {}
    for learning in group:
        wrong = state.adapter.conflicts(learning.rows, learning.ids)
        seen = dict(met) if len(group) > 1 else met
        for row, (id_, features) in enumerate(zip(learning.ids.tolist(), learning.rows, strict=True)):
            before = seen.setdefault(id_, features)
            wrong[row] |= before is not features and _apart(before, features)
        if wrong.any():
            learning.problem = ValueError(
                f"sample {int(wrong.argmax())} has the id of another sample, which was learned "
                "before: ids name one sample each"
            )
        else:
            consistent.append(learning)
            met = seen
    return consistent


def _apart(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.abs(one - other).max() > _OTHER_SAMPLE)
