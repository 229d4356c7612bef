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
from soba._formats import FORMAT, check_format
from soba.adapt.base import Adapter
from soba.adapt.delta import Delta
from soba.adapt.stream import StreamAdapter
from soba.adapt.view import View as Predictor
from soba.adapt.zero_shot import ZeroShot
from soba.registry import adapter_class
from soba.serve.learned import Learned
from soba.serve.recent_ids import (
    NO_PAST,
    NONE,
    PastIds,
    RecentIds,
    digests_of,
    known,
    last_of_each,
    restored,
    stored,
)
from soba.serve.store import LEARN, Damaged, Entry, Transaction

REMEMBERED = 1_000_000  # ids, unless told otherwise
# Entries that are whole states, and those that are settings, as JSON.
REPLACING = frozenset({"classes", "rollback", "reset", "import", "upgrade"})
SETTING = frozenset({"freeze", "unfreeze", "guard"})


@dataclass
class StreamState:
    """A stream at a version. While it learns, until that is committed, it is ahead of the log.

    Ids lie beside the digests of what they name, in the records of `recent_ids.py`.
    """

    adapter: StreamAdapter
    names: tuple[str, ...]
    templates: tuple[str, ...]
    encoder: dict[str, Any]  # its fingerprint, and what it was opened as
    recent: RecentIds
    held: np.ndarray  # ids from before the recent ones, whose samples are kept
    settings: dict[str, Any]  # frozen, guard and what it said: see guard.py
    version: int = 0
    past: PastIds = NO_PAST  # from before a reset or an import

    @classmethod
    def begun(
        cls, adapter: StreamAdapter, note: dict[str, Any], remember: int = REMEMBERED
    ) -> StreamState:
        """The state of a new stream, which takes over an adapter and what it has learned.

        `note` is what a classifier's file says of its classes and its encoder. Nobody knows in
        which order the adapter's ids came: in that of their numbers they are the oldest ones.
        """
        ids, held = adapter.bound_ids(remember)
        return cls._of(adapter, note, RecentIds(remember, known(ids)), known(held))

    @classmethod
    def _of(
        cls, adapter: StreamAdapter, note: dict[str, Any], recent: RecentIds, held: np.ndarray
    ) -> StreamState:
        names, templates = tuple(note["class_names"]), tuple(note["templates"])
        encoder = {key: note[key] for key in ("encoder", "opened_as")}
        return cls(adapter, names, templates, encoder, recent, held, settings={})

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

    def digests_of(self, ids: np.ndarray) -> np.ndarray:
        """(n,) what is known of the contents of samples; 0 where nothing is."""
        recent, held = (digests_of(some, ids) for some in (self.recent.records(), self.held))
        return np.where(recent, recent, held)  # an id is in one of the two

    def learned(self, entry: Learned) -> None:
        """Samples were learned; those of long ago may come again as new ones."""
        old = self.recent.add(entry.records)
        if len(old):
            self._forget(old)

    def replaced(self, **parts: Any) -> StreamState:
        """The same stream with other parts."""
        return replace(self, **parts)

    def emptied(self) -> StreamState:
        """The same stream without samples and without ids."""
        adapter, recent = self.adapter.copy().reset(), RecentIds(self.recent.remember)
        return self.replaced(adapter=adapter, recent=recent, held=NONE, past=self.left_behind())

    def left_behind(self) -> PastIds:
        """The ids, for a state that begins anew: unknown to it, but not to who goes back."""
        return self.past.extended(self.recent.records(), self.version, self.recent.remember)

    def knowing(self, later: StreamState) -> StreamState:
        """This state of the past, to which all that a later one learned is known by its id."""
        recent, seen = RecentIds(later.recent.remember), self.adapter._seen
        since = later.past.since(self.version)  # learned since, and made unknown by a reset
        recent.add(last_of_each(np.append(since, later.recent.records())))
        ids = np.union1d(recent.records()["id"], later.held["id"])
        # They are not absorbed as samples are: with a horizon, these would push others out.
        seen.add(ids[seen.unknown(ids)])
        self.adapter._reschedule()
        # Ids that were recent in the past are no longer: they are forgotten with the next ones.
        held = last_of_each(np.concatenate([self.held, self.recent.records(), later.held]))
        held = held[~np.isin(held["id"], recent.records()["id"])]
        past = later.past.before(self.version)
        return self.replaced(recent=recent, held=held, past=past, settings=later.settings)

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
            learned = Learned.from_bytes(entry.blob)
            deltas.append(learned.delta)
            old = state.recent.add(learned.records)
            if len(old):  # an id that is forgotten here may be new in the next entry
                state._absorb(deltas)
                state._forget(old)
        state._absorb(deltas)
        return state

    def _absorb(self, deltas: list[Delta]) -> None:
        self.adapter.absorb(*deltas)
        self.version += len(deltas)
        deltas.clear()

    def _forget(self, records: np.ndarray) -> None:
        """Samples that are kept stay known; once they are not, they are forgotten as others are."""
        older = np.append(self.held, records)
        self.held = older[np.isin(older["id"], self.adapter.forget_ids(older["id"]))]
        self.past = NO_PAST  # which is older still

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
            "format": FORMAT,
            "state": state["meta"],
            "note": self.note,
            "remember": self.recent.remember,
            "settings": self.settings,
            "version": self.version,
        }
        arrays = {f"state.{name}": array for name, array in state["arrays"].items()}
        arrays |= stored("recent", self.recent.records()) | stored("held", self.held)
        arrays |= stored("past", self.past.records) | {"past.until": self.past.until}
        return checked_bytes("a stream's state", arrays, meta)

    @classmethod
    def from_bytes(cls, blob: bytes) -> StreamState:
        arrays, meta = read_checked_bytes("a stream's state", blob)
        check_format("a stream's state", meta["format"])
        inside = {
            name.removeprefix("state."): array
            for name, array in arrays.items()
            if name.startswith("state.")
        }
        method = adapter_class(str(meta["state"]["adapter"]))
        adapter = method.from_state({"meta": meta["state"], "arrays": inside})
        recent = RecentIds(meta["remember"], restored("recent", arrays))
        held = restored("held", arrays)
        state = cls._of(checked_adapter(adapter), meta["note"], recent, held)
        state.past = PastIds(restored("past", arrays), np.array(arrays["past.until"]))
        state.settings, state.version = meta["settings"], meta["version"]
        return state

    def header(self) -> dict[str, Any]:
        """What the table of streams says of it, as the store takes it."""
        settings = {
            "format": FORMAT,
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
    # Of the past, the log may have been trimmed; the present must be there.
    kind = Damaged if until == transaction.version else ValueError
    raise kind(f"{where} cannot be brought to version {until}: {problems}")


def _replayed(transaction: Transaction, version: int, until: int) -> StreamState:
    state = StreamState.from_bytes(transaction.snapshot(version))
    entries = transaction.entries_between(version, until)
    if entries is None:
        raise ValueError("the log since then was trimmed")
    return state.applied(entries)
