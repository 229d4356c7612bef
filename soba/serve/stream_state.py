"""What a process knows of a stream: an adapter, its classes, and how the log changes them.

The state at a version is a function of the log up to it. Whoever applies the same entries, or
loads a snapshot of them and applies the rest, has the same state to the bit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from soba._files import checked_bytes, parse_json, read_checked_bytes
from soba.adapt.base import Adapter
from soba.adapt.delta import Delta
from soba.adapt.stream import StreamAdapter
from soba.adapt.view import View as Predictor
from soba.adapt.zero_shot import ZeroShot
from soba.registry import adapter_class
from soba.serve.recent_ids import RecentIds
from soba.serve.store import LEARN, Entry, Transaction

REMEMBERED = 1_000_000  # ids, unless told otherwise
REPLACING = frozenset({"classes", "rollback", "reset", "import"})  # entries that are whole states
SETTING = frozenset({"freeze", "unfreeze", "guard"})  # entries that are settings, as JSON
_FORMAT = 1
_NONE = np.empty(0, np.int64)


@dataclass
class StreamState:
    """A stream at a version. While it learns, until that is committed, it is ahead of the log."""

    adapter: StreamAdapter
    names: tuple[str, ...]
    templates: tuple[str, ...]
    encoder: dict[str, Any]  # its fingerprint, and what it was opened as
    recent: RecentIds
    held: np.ndarray  # ids from before the recent ones, whose samples are kept
    settings: dict[str, Any]  # frozen, guard and what it said: see guard.py
    version: int = 0

    @classmethod
    def begun(
        cls, adapter: StreamAdapter, note: dict[str, Any], remember: int = REMEMBERED
    ) -> StreamState:
        """The state of a new stream, which goes on from what an adapter has learned.

        `note` is what a classifier's file says of its classes and its encoder.
        """
        return cls(
            adapter,
            tuple(note["class_names"]),
            tuple(note["templates"]),
            {key: note[key] for key in ("encoder", "opened_as")},
            RecentIds(remember),
            _NONE,
            {},
        )

    @property
    def frozen(self) -> bool:
        return bool(self.settings.get("frozen"))

    def predictor(self) -> Predictor:
        """What answers now: the adapter, or zero-shot where the guard does not trust it."""
        adapter: Adapter = self.adapter
        if self.settings.get("fallback"):
            adapter = ZeroShot(adapter._given_text, logit_scale=adapter.logit_scale)
        return adapter.view()

    @property
    def note(self) -> dict[str, Any]:
        """What a classifier's file says beside the state of its adapter."""
        return {
            "class_names": list(self.names),
            "templates": list(self.templates),
            **self.encoder,
        }

    def learned(self, ids: np.ndarray) -> None:
        """Samples were learned; those of long ago may come again as new ones."""
        old = self.recent.add(ids)
        if len(old):
            self._forget(old)

    def replaced(self, **parts: Any) -> StreamState:
        """The same stream with other parts."""
        return replace(self, **parts)

    def emptied(self) -> StreamState:
        """The same stream without samples and without ids."""
        adapter = self.adapter.copy().reset()
        return self.replaced(adapter=adapter, recent=RecentIds(self.recent.remember), held=_NONE)

    def knowing(self, later: StreamState) -> StreamState:
        """This state of the past, to which all that a later one learned is known by its id."""
        recent, seen = later.recent.ids(), self.adapter._seen
        ids = np.union1d(recent, later.held)
        # They are not absorbed as samples are: with a horizon, these would push others out.
        seen.add(ids[seen.unknown(ids)])
        self.adapter._reschedule()
        # Ids that were recent in the past are no longer: they are forgotten with the next ones.
        before = np.concatenate([self.held, self.recent.ids(), later.held])
        held = np.setdiff1d(before, recent)
        return self.replaced(recent=later.recent, held=held, settings=later.settings)

    def applied(self, entries: list[Entry]) -> StreamState:
        """The state after the next entries of the log."""
        state = self
        deltas: list[Delta] = []  # absorbed together, which saves refreshes
        for entry in entries:
            if entry.version != state.version + len(deltas) + 1:
                raise ValueError(f"entry {entry.version} does not follow {state.version}")
            if entry.kind != LEARN:
                state._absorb(deltas)
                state = state._changed(entry)
                continue
            deltas.append(Delta.from_bytes(entry.blob))
            old = state.recent.add(deltas[-1].ids)
            if len(old):  # an id that is forgotten here may be new in the next entry
                state._absorb(deltas)
                state._forget(old)
        state._absorb(deltas)
        return state

    def _absorb(self, deltas: list[Delta]) -> None:
        self.adapter.absorb(*deltas)
        self.version += len(deltas)
        deltas.clear()

    def _forget(self, ids: np.ndarray) -> None:
        """Samples that are kept stay known; once they are not, they are forgotten as others are."""
        self.held = self.adapter.forget_ids(np.concatenate([self.held, ids]))

    def _changed(self, entry: Entry) -> StreamState:
        state = self
        if entry.kind in REPLACING:
            state = StreamState.from_bytes(entry.blob)
        elif entry.kind in SETTING:
            state = self.replaced(settings=self.settings | parse_json(entry.blob))
        else:
            raise ValueError(f"{entry.kind!r} is no change that this version of soba knows")
        state.version = entry.version
        return state

    def to_bytes(self) -> bytes:
        state = self.adapter.state()
        meta = {
            "format": _FORMAT,
            "state": state["meta"],
            "note": self.note,
            "remember": self.recent.remember,
            "settings": self.settings,
            "version": self.version,
        }
        arrays = {f"state.{name}": array for name, array in state["arrays"].items()}
        arrays |= {"recent": self.recent.ids(), "held": self.held}
        return checked_bytes("a stream's state", arrays, meta)

    @classmethod
    def from_bytes(cls, blob: bytes) -> StreamState:
        arrays, meta = read_checked_bytes("a stream's state", blob)
        if meta["format"] != _FORMAT:
            raise ValueError(f"a state of format {meta['format']!r}; this version reads {_FORMAT}")
        stored = {
            name.removeprefix("state."): array
            for name, array in arrays.items()
            if name.startswith("state.")
        }
        method = adapter_class(str(meta["state"]["adapter"]))
        adapter = method.from_state({"meta": meta["state"], "arrays": stored})
        state = cls.begun(checked_adapter(adapter), meta["note"], meta["remember"])
        state.recent = RecentIds(meta["remember"], arrays["recent"])
        state.held = np.array(arrays["held"])
        state.settings, state.version = meta["settings"], meta["version"]
        return state

    def header(self) -> dict[str, Any]:
        """What the table of streams says of it, as the store takes it."""
        settings = {
            "method": self.adapter.name,
            "params": self.adapter.params,
            "class_names": list(self.names),
            "templates": list(self.templates),
            "remember": self.recent.remember,
        }
        text = np.ascontiguousarray(self.adapter.text_features, "<f4")
        return {"settings": json.dumps(settings, sort_keys=True), "text": text.tobytes()}


def checked_adapter(adapter: Any) -> StreamAdapter:
    """An adapter that can be kept as a log: one that keeps samples."""
    if isinstance(adapter, StreamAdapter) and adapter.keeps_samples:
        return adapter
    raise ValueError(f"{adapter.name} keeps no samples of its stream, so there is no log to keep")


class _Tried(NamedTuple):
    version: int
    problem: str


def load_state(transaction: Transaction, until: int) -> StreamState:
    """The state at a version: the last good snapshot before it, and the log from there on."""
    where = f"{transaction.store.database.name}: stream {transaction.stream!r}"
    tried: list[_Tried] = []
    for version in transaction.snapshots():
        if version > until:
            continue
        try:
            return _replayed(transaction, version, until)
        except (ValueError, KeyError, TypeError) as error:
            tried.append(_Tried(version, str(error)))
    if not tried:
        raise ValueError(f"{where} has no snapshot at version {until} or before")
    problems = "; ".join(f"from version {version}: {problem}" for version, problem in tried)
    raise ValueError(f"{where} cannot be brought to version {until}: {problems}")


def _replayed(transaction: Transaction, version: int, until: int) -> StreamState:
    state = StreamState.from_bytes(transaction.snapshot(version))
    entries = transaction.entries_between(version, until)
    if entries is None:
        raise ValueError("the log since then was trimmed")
    return state.applied(entries)
