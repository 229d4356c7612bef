"""State as a log: every change of a stream is an entry under the next version, whole or not there.

Three tables. `stream` says what a stream is and its version, `delta` holds the entries of the log,
`snapshot` the state at some versions, so that old entries can go. All blobs have a checksum over
their place as well, so that no entry can stand in for another. In `backup` lie rows as they were
before a newer soba rewrote them (`upgrade.py`); nobody reads them, and they go with the stream.

Whoever changes a stream locks its row, reads what others wrote since, appends, and commits.
The store knows nothing of adapters: blobs come and go as bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from soba.serve.databases import Connection, Database
from soba.serve.snapshots import surplus

_log = logging.getLogger(__name__)

LEARN = "learn"  # the kind of entry that there are millions of; all others stay in the history

_TABLES = (
    """CREATE TABLE IF NOT EXISTS stream (
        name TEXT PRIMARY KEY, settings TEXT NOT NULL, text {blob} NOT NULL, encoder TEXT NOT NULL,
        version BIGINT NOT NULL, log_bytes BIGINT NOT NULL, snapshot_bytes BIGINT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS delta (
        stream TEXT NOT NULL, version BIGINT NOT NULL, kind TEXT NOT NULL, samples BIGINT NOT NULL,
        at DOUBLE PRECISION NOT NULL, digest {blob}, blob {blob}, PRIMARY KEY (stream, version))""",
    """CREATE TABLE IF NOT EXISTS snapshot (
        stream TEXT NOT NULL, version BIGINT NOT NULL, digest {blob} NOT NULL, blob {blob} NOT NULL,
        PRIMARY KEY (stream, version))""",
    "CREATE TABLE IF NOT EXISTS removed (name TEXT PRIMARY KEY, version BIGINT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS backup (
        stream TEXT NOT NULL, format BIGINT NOT NULL, kind TEXT NOT NULL, version BIGINT NOT NULL,
        digest {blob} NOT NULL, blob {blob} NOT NULL,
        PRIMARY KEY (stream, format, kind, version))""",
)
_ADD_STREAM = "INSERT INTO stream VALUES (?, ?, ?, ?, 0, 0, 0) ON CONFLICT (name) DO NOTHING"
_BEGIN_AT = "UPDATE stream SET version = ?, snapshot_bytes = ? WHERE name = ?"
_HEADER = """SELECT settings, text, encoder, version, log_bytes, snapshot_bytes
    FROM stream WHERE name = ?"""
_NAMES = "SELECT name FROM stream ORDER BY name"
_VERSION = "SELECT version FROM stream WHERE name = ?"
_FIRST_VERSION = "SELECT version + 1 FROM removed WHERE name = ?"
_REMOVE = (
    """INSERT INTO removed SELECT name, version FROM stream WHERE name = ?
        ON CONFLICT (name) DO UPDATE SET version = excluded.version""",
    "DELETE FROM delta WHERE stream = ?",
    "DELETE FROM snapshot WHERE stream = ?",
    "DELETE FROM backup WHERE stream = ?",
    "DELETE FROM stream WHERE name = ?",
)
_DESCRIBE = "UPDATE stream SET settings = ?, text = ? WHERE name = ?"
_ENTRIES = """SELECT version, kind, samples, at, digest, blob FROM delta
    WHERE stream = ? AND version > ? AND version <= ? ORDER BY version"""
_APPEND = "INSERT INTO delta VALUES (?, ?, ?, ?, ?, ?, ?)"
_ADVANCE = "UPDATE stream SET version = ?, log_bytes = log_bytes + ? WHERE name = ?"
_HISTORY = """SELECT version, kind, samples, at FROM delta
    WHERE stream = ? ORDER BY version DESC LIMIT ?"""
_SNAPSHOT_VERSIONS = "SELECT version FROM snapshot WHERE stream = ? ORDER BY version DESC"
_SNAPSHOT = "SELECT digest, blob FROM snapshot WHERE stream = ? AND version = ?"
_DROP_SNAPSHOT = "DELETE FROM snapshot WHERE stream = ? AND version = ?"
_ADD_SNAPSHOT = "INSERT INTO snapshot VALUES (?, ?, ?, ?)"
_LOG_BYTES = "SELECT COALESCE(SUM(LENGTH(blob)), 0) FROM delta WHERE stream = ? AND version > ?"
_TRIM = f"DELETE FROM delta WHERE stream = ? AND version <= ? AND kind = '{LEARN}'"
_EMPTY = "UPDATE delta SET digest = NULL, blob = NULL WHERE stream = ? AND version <= ?"
_COMPACTED = "UPDATE stream SET log_bytes = ?, snapshot_bytes = ? WHERE name = ?"
_LAST_VERSION = (1 << 63) - 1


class StoreError(OSError):
    """The database could not do it; nothing was acknowledged, and the call can be repeated."""


class NoStream(ValueError):
    """There is no stream of that name."""


class Damaged(ValueError):
    """What the database holds is not what was written."""


class Entry(NamedTuple):
    """One change of a stream."""

    version: int
    kind: str  # learn, classes, guard, freeze, unfreeze, rollback, reset, import, upgrade
    samples: int  # learned by it
    at: float  # seconds since 1970, by the clock of the process that wrote it
    blob: bytes


class Header(NamedTuple):
    """What a stream is, without its state."""

    settings: str  # JSON
    text: bytes
    encoder: str
    version: int
    log_bytes: int
    snapshot_bytes: int


class Store:
    """The streams of one database. Threads may share it: they take turns."""

    tables: tuple[str, ...] = _TABLES
    forgets: tuple[str, ...] = ()  # what else goes with a stream

    def __init__(self, database: Database) -> None:
        self.database = database
        self.connections = 0  # so far
        self._turn = threading.RLock()
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        return f"Store({self.database.name!r})"

    def names(self) -> list[str]:
        """The streams there are."""
        return [name for (name,) in self._read(_NAMES, ())]

    def header(self, stream: str) -> Header | None:
        """What a stream is; None where there is none of that name."""
        rows = self._read(_HEADER, (stream,))
        return Header(*rows[0]) if rows else None

    def create(
        self,
        stream: str,
        *,
        settings: str,
        text: bytes,
        encoder: str,
        blob_at: Callable[[int], bytes],
    ) -> bool:
        """Make a stream, unless there is one of that name: whether it was made.

        It begins behind one of that name that was removed, so that nobody who still knows that one
        takes the new one's log for its own; `blob_at` gives the state at the version it begins at.
        """
        with self._turn, self._reaching() as connection:
            connection.execute(self.database.begin)
            connection.execute(_ADD_STREAM, (stream, settings, text, encoder))
            is_new = not connection.execute(_SNAPSHOT_VERSIONS, (stream,)).fetchall()
            if is_new:
                removed = connection.execute(_FIRST_VERSION, (stream,)).fetchall()
                version = int(removed[0][0]) if removed else 0
                blob = blob_at(version)
                digest = digest_of(stream, "snapshot", version, blob)
                connection.execute(_BEGIN_AT, (version, len(blob), stream))
                connection.execute(_ADD_SNAPSHOT, (stream, version, digest, blob))
            connection.execute("COMMIT")
        return is_new

    def remove(self, stream: str) -> bool:
        """Remove a stream with its log and its snapshots: whether there was one."""
        with self._turn, self._reaching() as connection:
            connection.execute(self.database.begin)
            # Whoever learns just now ends first: what they wrote goes, and counts as a version.
            there = connection.execute(_VERSION + self.database.lock, (stream,)).fetchall()
            for statement in (*_REMOVE, *self.forgets):
                connection.execute(statement, (stream,))
            connection.execute("COMMIT")
        return bool(there)

    def entries(self, stream: str, since: int) -> list[Entry] | None:
        """What was written after a version; None where that part of the log is gone."""
        versions = self._read(_VERSION, (stream,))
        if not versions:
            raise NoStream(f"{self.database.name}: there is no stream {stream!r}")
        [(until,)] = versions
        if since >= until:
            return [] if since == until else None
        rows = self._read(_ENTRIES, (stream, since, until))
        return self._checked(stream, since, until, rows)

    def history(self, stream: str, limit: int) -> list[tuple[int, str, int, float]]:
        """(version, kind, samples, at) of the entries that are kept, newest first."""
        return [tuple(row) for row in self._read(_HISTORY, (stream, limit))]

    def snapshots(self, stream: str) -> list[int]:
        """The versions of which the state is kept, newest first."""
        return [version for (version,) in self._read(_SNAPSHOT_VERSIONS, (stream,))]

    @contextlib.contextmanager
    def locked(self, stream: str, since: int | None) -> Iterator[Transaction]:
        """A transaction that holds the stream; it is committed when all went well.

        `since` is the version that the caller knows, so that what is newer is read on the way.
        """
        since = _LAST_VERSION if since is None else since
        with self._turn, self._reaching() as connection:
            with self.database.together(connection):
                connection.execute(self.database.begin)
                header = connection.execute(_HEADER + self.database.lock, (stream,))
                newer = connection.execute(_ENTRIES, (stream, since, _LAST_VERSION))
                rows, entries = header.fetchall(), newer.fetchall()
            if not rows:
                raise NoStream(f"{self.database.name}: there is no stream {stream!r}")
            transaction = Transaction(self, connection, stream, Header(*rows[0]), since, entries)
            yield transaction
            began = time.perf_counter()
            with self.database.together(connection):
                for statement, values in transaction.writes:
                    connection.execute(statement, values)
                connection.execute("COMMIT")
            transaction.commit_seconds = time.perf_counter() - began
            for line in transaction.log_lines:
                _log.warning("%s", line)

    def close(self) -> None:
        """Let go of the connection; the next call makes a new one."""
        with self._turn:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(Exception):  # it may be broken, which is why it goes
                    connection.close()

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[Connection]:
        """The connection. An error of any kind ends its transaction; errors of the database are
        told as what they are for the caller: nothing is lost, nothing is learned twice."""
        try:
            if self._connection is None:
                self._connection = self._connected()
            yield self._connection
        except self.database.errors as error:
            self.close()
            reason = " ".join(str(error).split()) or type(error).__name__
            raise StoreError(
                f"{self.database.name}: {reason}; what was not acknowledged can be sent again"
            ) from error
        except BaseException:
            self.close()  # which rolls back, whatever state the transaction was in
            raise

    def _connected(self) -> Connection:
        connection = self.database.connect()
        try:
            for statement in self.database.begin_setup:
                connection.execute(statement)
            for statement in self.tables:
                connection.execute(statement.format(blob=self.database.blob))
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        self.connections += 1
        return connection

    def _read(self, statement: str, values: Sequence[Any]) -> list[Any]:
        with self._turn, self._reaching() as connection:
            return connection.execute(statement, values).fetchall()

    def _checked(self, stream: str, since: int, until: int, rows: list[Any]) -> list[Entry] | None:
        """Entries, if they are all there and whole."""
        if [row[0] for row in rows if row[5] is not None] != list(range(since + 1, until + 1)):
            return None
        return [
            Entry(
                version, kind, samples, at, self._whole(stream, kind, version, digest, bytes(blob))
            )
            for version, kind, samples, at, digest, blob in rows
        ]

    def _whole(self, stream: str, kind: str, version: int, digest: bytes, blob: bytes) -> bytes:
        if bytes(digest) != digest_of(stream, kind, version, blob):
            raise Damaged(f"{self.database.name}: {kind} {version} of stream {stream!r} is damaged")
        return blob


@dataclass
class Transaction:
    """A stream that is locked: what others wrote, and what is to be written when it ends."""

    store: Store
    connection: Connection
    stream: str
    header: Header
    since: int
    newer: list[Any]
    writes: list[tuple[str, Sequence[Any]]] = field(default_factory=list)
    log_lines: list[str] = field(default_factory=list)  # for the log of the process, once it ended
    commit_seconds: float = 0.0  # known when it has ended

    @property
    def version(self) -> int:
        return self.header.version

    def entries(self) -> list[Entry] | None:
        """What was written since; None where that part of the log is gone, or was never there."""
        if self.since > self.version:
            return None
        return self.store._checked(self.stream, self.since, self.version, self.newer)

    def entries_between(self, since: int, until: int) -> list[Entry] | None:
        """The entries after one version, up to another."""
        rows = self.connection.execute(_ENTRIES, (self.stream, since, until)).fetchall()
        return self.store._checked(self.stream, since, until, rows)

    def snapshots(self) -> list[int]:
        """The versions of which the state is kept, newest first."""
        rows = self.connection.execute(_SNAPSHOT_VERSIONS, (self.stream,)).fetchall()
        return [version for (version,) in rows]

    def snapshot(self, version: int) -> bytes:
        """The state at one of these versions."""
        [(digest, blob)] = self.connection.execute(_SNAPSHOT, (self.stream, version)).fetchall()
        return self.store._whole(self.stream, "snapshot", version, digest, bytes(blob))

    def append(self, kind: str, blob: bytes, samples: int = 0) -> int:
        """Write the next entry of the log; its version."""
        version = self.version + 1
        digest = digest_of(self.stream, kind, version, blob)
        entry = (self.stream, version, kind, samples, time.time(), digest, blob)
        self.writes += [
            (_APPEND, entry),
            (_ADVANCE, (version, len(blob), self.stream)),
        ]
        self.header = self.header._replace(
            version=version, log_bytes=self.header.log_bytes + len(blob)
        )
        return version

    def describe(self, settings: str, text: bytes) -> None:
        """The stream is now set up otherwise."""
        self.writes.append((_DESCRIBE, (settings, text, self.stream)))

    def compact(self, blob: bytes) -> None:
        """Keep the state at this version. Entries that only older snapshots than the one before
        need are dropped: should this one be damaged, the one before and the log will do."""
        before = self.snapshots()
        floor = before[0]
        if floor == self.version:  # it is there already, but for damage
            self.writes.append((_DROP_SNAPSHOT, (self.stream, self.version)))
            floor = before[1] if len(before) > 1 else self.version
        kept = sorted({self.version, *before}, reverse=True)
        self.writes += [(_DROP_SNAPSHOT, (self.stream, version)) for version in surplus(kept)]
        digest = digest_of(self.stream, "snapshot", self.version, blob)
        self.writes.append((_ADD_SNAPSHOT, (self.stream, self.version, digest, blob)))
        [(log_bytes,)] = self.connection.execute(_LOG_BYTES, (self.stream, floor)).fetchall()
        self.writes += [
            (_TRIM, (self.stream, floor)),
            (_EMPTY, (self.stream, floor)),
            (_COMPACTED, (int(log_bytes), len(blob), self.stream)),
        ]
        self.header = self.header._replace(log_bytes=int(log_bytes), snapshot_bytes=len(blob))


def json_bytes(settings: dict[str, Any]) -> bytes:
    """Settings as an entry of the log holds them."""
    return json.dumps(settings).encode()


def digest_of(stream: str, kind: str, version: int, blob: bytes) -> bytes:
    """The checksum of a blob and of its place."""
    digest = hashlib.sha256(f"{len(stream)} {stream} {kind} {version} ".encode())
    digest.update(blob)
    return digest.digest()
