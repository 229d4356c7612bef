"""One process's copy of a stream: brought up to date, changed, written, and shown."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from soba.adapt._following import FollowingAdapter
from soba.adapt.scheduled import ScheduledAdapter
from soba.adapt.stream import StreamAdapter
from soba.adapt.view import View as Predictor
from soba.serve.group_commit import GroupCommit
from soba.serve.guard import guarded, rescored
from soba.serve.learning import Learning, learn_together
from soba.serve.store import LEARN, Header, Store, Transaction, json_bytes
from soba.serve.stream_state import StreamState
from soba.serve.upgrade import opened

_log = logging.getLogger(__name__)
_PATIENCE = 60.0  # seconds between two compactions, if the first one failed
_GROUP = 1024  # samples in one transaction, unless one caller brings more
_LEAST_LOG = 1 << 20  # bytes of log that are no trouble, however small the state is

T = TypeVar("T")
Work = Callable[[Transaction, StreamState], StreamState]


class View(NamedTuple):
    """A stream at one version: it stays as it is, whatever the stream does."""

    version: int
    predictor: Predictor  # logits, probabilities, predict, top_k, explain
    names: tuple[str, ...]
    templates: tuple[str, ...]
    frozen: bool
    scaled_text: np.ndarray  # (C, d)
    method: str
    n_seen: int
    settings: dict[str, Any]  # frozen, guard and what it said: see guard.py
    queued: np.ndarray  # (C,) samples that speak for each class
    room: int | None  # of these, at most; None: any number
    expected: Any  # ExpectedAccuracy, of methods that estimate it

    @property
    def answers_by(self) -> Literal["adapted", "zero-shot"]:
        """Whose answers these are: a stream that its guard does not trust answers by zero-shot."""
        return "zero-shot" if self.settings.get("fallback") else "adapted"


class Replica:
    """What this process knows of a stream. Threads may share it.

    `view` is what was committed last. The state behind it is ahead of the log while a transaction
    runs; should that fail, or the database go away, the state is dropped and loaded anew.
    """

    def __init__(self, store: Store, stream: str) -> None:
        self.store, self.stream = store, stream
        self._state: StreamState | None = None
        self._connections = 0  # of the store, when the state was known to be the database's
        self._header: Header | None = None
        self._not_before = 0.0  # after a compaction that failed, by the monotonic clock
        self._compacted = -1  # the version at which the log was last compacted from here
        self._group = GroupCommit(self._learn, self._compact_if_due, _GROUP)
        self._group.alone(lambda: self._change(_unchanged))

    view: View

    def learn(self, learning: Learning, *, gather: float = 0.0) -> None:
        """Learn samples, together with those of others who wait, or come in so many seconds."""
        self._group.submit(learning, gather=gather)
        if learning.problem is not None:
            raise learning.problem

    def sync(self) -> View:
        """Take in what other processes wrote."""
        self._group.alone(self._sync)
        return self.view

    def replace(self, kind: str, work: Work) -> None:
        """Append an entry that is a whole state, made of the present one."""

        def replaced(transaction: Transaction, state: StreamState) -> StreamState:
            new = work(transaction, state)
            new.version = state.version + 1
            new = rescored(new)
            transaction.append(kind, new.to_bytes())
            transaction.describe(**new.header())
            return new

        self._alone(replaced)

    def set(self, kind: str, work: Callable[[StreamState], dict[str, Any]]) -> None:
        """Append an entry that changes settings, made of the present state."""

        def changed(transaction: Transaction, state: StreamState) -> StreamState:
            settings = work(state)
            transaction.append(kind, json_bytes(settings))
            return state.replaced(settings=state.settings | settings)

        self._alone(changed)

    def read(self, work: Callable[[StreamState], T]) -> T:
        """Make something of the state as it is in the database now; work changes nothing."""

        def reading() -> T:
            self._sync()
            assert self._state is not None
            return work(self._state)

        return self._group.alone(reading)

    # By the thread whose turn it is -----------------------------------------------------------

    def _alone(self, work: Work) -> None:
        def changing() -> None:
            self._change(work)
            self._compact_if_due()

        self._group.alone(changing)

    def _learn(self, group: list[Learning]) -> None:
        refreshing = 0.0

        def learned(transaction: Transaction, state: StreamState) -> StreamState:
            nonlocal refreshing
            before, began = _statistics(state), time.perf_counter()
            delta = learn_together(state, group)
            if delta is None:
                return state
            transaction.append(LEARN, delta.to_bytes(), len(delta))
            after = _statistics(state)
            if after is not before:
                refreshing = time.perf_counter() - began
            if after is not before or not _refreshes(state):
                state = guarded(transaction, state, group)
            return state

        commit_seconds = self._change(learned)
        for learning in group:
            learning.view, learning.commit_seconds = self.view, commit_seconds
            learning.refresh_seconds = refreshing

    def _change(self, work: Work) -> float:
        """One transaction; what was changed in memory counts when it is committed.

        Returns the seconds that the commit took.
        """
        since = None if self._state is None else self._state.version
        try:
            with self.store.locked(self.stream, since) as transaction:
                state = work(transaction, self._caught_up(transaction))
                state.version = transaction.version
        except BaseException:
            self._state = None
            raise
        self._header = transaction.header
        self._know(state)
        return transaction.commit_seconds

    def _caught_up(self, transaction: Transaction) -> StreamState:
        # Who lost the connection cannot tell what became of the database in the meantime.
        same = self._connections == self.store.connections
        entries = transaction.entries() if same and self._state is not None else None
        if self._state is None or entries is None:  # nothing known, or behind the trimmed log
            return opened(transaction)
        return self._state.applied(entries)

    def _sync(self) -> None:
        try:
            state = self._state
            entries = None if state is None else self.store.entries(self.stream, state.version)
            if state is not None and entries is not None:
                state = state.applied(entries)
        except BaseException:
            self._state = None
            raise
        if state is None or entries is None or self._connections != self.store.connections:
            self._change(_unchanged)
        elif entries:
            self._know(state)

    def _know(self, state: StreamState) -> None:
        """This is the state in the database now: it can be shown."""
        self._state, self._connections = state, self.store.connections
        adapter = state.adapter
        expected = getattr(adapter, "expected_accuracy", None)
        self.view = View(
            state.version,
            state.predictor(),
            state.names,
            state.templates,
            state.frozen,
            adapter._scaled_text,
            adapter.name,
            adapter.n_seen,
            state.settings,
            *_evidence(adapter),
            None if expected is None else expected(),
        )

    def _compact_if_due(self) -> None:
        def compacted(transaction: Transaction, state: StreamState) -> StreamState:
            # Nobody else did it in the meantime. After a state that was larger than this one its
            # log still outweighs it, and the same state is not written twice.
            newest = max(transaction.snapshots(), default=0)
            if _outweighs(transaction.header) and newest < transaction.version:
                transaction.compact(state.to_bytes())
            return state

        header = self._header
        if header is None or not _outweighs(header) or header.version == self._compacted:
            return
        if time.monotonic() < self._not_before:
            return
        # What was acknowledged is safe in the log, so whatever goes wrong here is nobody's error: a
        # later call tries again, and not the next one.
        try:
            self._change(compacted)
            self._compacted = self._header.version if self._header else 0
        except Exception:
            _log.exception("stream %r: its log could not be compacted", self.stream)
            self._not_before = time.monotonic() + _PATIENCE


def _outweighs(header: Header) -> bool:
    """Whether the log is larger than the state that it leads to."""
    return header.log_bytes > max(header.snapshot_bytes, _LEAST_LOG)


def _refreshes(state: StreamState) -> bool:
    """Whether answers change at refreshes only, and not with every sample."""
    adapter = state.adapter
    return isinstance(adapter, ScheduledAdapter) and not isinstance(adapter, FollowingAdapter)


def _statistics(state: StreamState) -> object:
    """What a refresh replaces."""
    return getattr(state.adapter, "statistics_", None)


def _evidence(adapter: StreamAdapter) -> tuple[np.ndarray, int | None]:
    """(C,) samples that speak for each class, and how many can.

    Those in the queues; of a method with a sample, its images as the last refresh shared them out.
    """
    queues = list(adapter._queues.values())
    if not queues:
        known = getattr(adapter, "statistics_", None) or {}
        return known.get("mass", np.zeros(adapter.n_classes)), None
    rooms = [queue.capacity for queue in queues]
    room = None if None in rooms else sum(room or 0 for room in rooms)
    return np.sum([queue.sizes for queue in queues], axis=0), room


def _unchanged(transaction: Transaction, state: StreamState) -> StreamState:
    return state
