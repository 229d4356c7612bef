"""Streams that a former soba has written: rewritten once, by whoever opens them first.

It is one transaction, under the lock of the stream. All rows are copied to the table `backup`, with
their format. The snapshots, the whole states in the log and the deltas are then written as this
version stores them (`soba/_formats.py` knows how); what is damaged stays as it is. The state that
this leads to becomes an entry of the log, "upgrade". A former soba that has the stream in its
memory cannot read that, so that it learns nothing more into a log that it does not understand.
"""

from __future__ import annotations

import json
from functools import partial

from soba._files import read_checked_bytes
from soba._formats import FORMAT, OLDEST, LogStep, check_format, upgraded_delta
from soba.adapt.delta import fingerprint
from soba.serve.guard import rescored
from soba.serve.learned import Learned, with_delta
from soba.serve.store import LEARN, Damaged, Transaction, digest_of
from soba.serve.stream_state import REPLACING, StreamState, load_state

_BACK_UP = (
    """INSERT INTO backup SELECT stream, {format}, 'snapshot', version, digest, blob
        FROM snapshot WHERE stream = ?""",
    """INSERT INTO backup SELECT stream, {format}, kind, version, digest, blob
        FROM delta WHERE stream = ? AND blob IS NOT NULL""",
)
_BACK_UP_SETTINGS = "INSERT INTO backup VALUES (?, ?, 'settings', ?, ?, ?)"
_KINDS = "SELECT version, kind FROM delta WHERE stream = ? AND blob IS NOT NULL ORDER BY version"
_REWRITE_SNAPSHOT = "UPDATE snapshot SET digest = ?, blob = ? WHERE stream = ? AND version = ?"
_REWRITE_ENTRY = "UPDATE delta SET digest = ?, blob = ? WHERE stream = ? AND version = ?"


def opened(transaction: Transaction) -> StreamState:
    """The state of a stream that this process does not know, which is of today's format then.

    Raises ValueError where a newer soba has written the stream.
    """
    header, where = transaction.header, f"stream {transaction.stream!r}"
    former = json.loads(header.settings).get("format", OLDEST)
    check_format(f"{transaction.store.database.name}: {where}", former)
    if former == FORMAT:
        return load_state(transaction, transaction.version)
    _back_up(transaction, former)
    _rewrite(transaction)
    state = load_state(transaction, transaction.version)
    state.version += 1
    state = rescored(state)
    transaction.append("upgrade", state.to_bytes())
    transaction.describe(**state.header())
    transaction.log_lines.append(
        f"{where} was of format {former} and is of format {FORMAT} from version {state.version} "
        "on; its rows are as they were in the table backup"
    )
    return state


def _back_up(transaction: Transaction, former: int) -> None:
    stream, version = transaction.stream, transaction.version
    for statement in _BACK_UP:
        transaction.connection.execute(statement.format(format=former), (stream,))
    settings = transaction.header.settings.encode()
    digest = digest_of(stream, "settings", version, settings)
    transaction.connection.execute(_BACK_UP_SETTINGS, (stream, former, version, digest, settings))


def _rewrite(transaction: Transaction) -> None:
    """Write what the log and the snapshots hold in today's format, and nothing twice.

    A delta says what it belongs to by a fingerprint of parameters, which the whole states have; and
    of how many samples came before it, the state before it knows.
    """
    entries = transaction.connection.execute(_KINDS, (transaction.stream,)).fetchall()
    whole = [(version, "snapshot") for version in transaction.snapshots()]
    whole += [(version, kind) for version, kind in entries if kind in REPLACING]
    setups: dict[str, str] = {}
    n_seen: dict[int, int] = {}  # at a version
    for version, kind in whole:
        try:
            blob = _blob(transaction, version, kind)
            state = StreamState.from_bytes(blob)
        except (ValueError, KeyError, TypeError):
            continue  # who loads the stream passes over it, or says what is wrong
        setups[_former_setup(blob)] = state.adapter._setup()
        n_seen[version] = state.adapter.n_seen
        _put(transaction, version, kind, state.to_bytes())
    seen = 0
    for version, kind in entries:
        seen = n_seen.get(version - 1, seen)
        if kind == LEARN:
            seen += _rewrite_learned(transaction, version, LogStep(setups, seen))


def _rewrite_learned(transaction: Transaction, version: int, log: LogStep) -> int:
    """How many samples an entry of the log learned."""
    try:
        blob = _blob(transaction, version, LEARN)
        blob = with_delta(blob, partial(upgraded_delta, log=log))
    except Damaged:
        return 0
    _put(transaction, version, LEARN, blob)
    return len(Learned.from_bytes(blob))


def _blob(transaction: Transaction, version: int, kind: str) -> bytes:
    if kind == "snapshot":
        return transaction.snapshot(version)
    entries = transaction.entries_between(version - 1, version)
    assert entries is not None  # it is there as a whole
    return entries[0].blob


def _put(transaction: Transaction, version: int, kind: str, blob: bytes) -> None:
    """Put other bytes in the place of an entry's or a snapshot's."""
    digest = digest_of(transaction.stream, kind, version, blob)
    statement = _REWRITE_SNAPSHOT if kind == "snapshot" else _REWRITE_ENTRY
    transaction.connection.execute(statement, (digest, blob, transaction.stream, version))


def _former_setup(blob: bytes) -> str:
    """The fingerprint that deltas have beside a state, by the parameters it was stored with."""
    arrays, meta = read_checked_bytes("a stream's state", blob)
    state = meta["state"]
    return fingerprint(state["adapter"], state["params"], arrays["state.text_features"])
