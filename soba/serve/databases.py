"""The databases that streams live in: how to reach each, and what it says in other words.

All statements are in `store.py`, `upgrade.py` and `ledger.py`, once. What the two databases say
differently is in a `Database`, a value each. It takes a function that connects, so that anyone can
bring a connection of their own: the tests bring one whose disk loses power.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

Durability = Literal["full", "normal", "off"]
DURABILITIES: tuple[Durability, ...] = ("full", "normal", "off")

_SYNCHRONOUS = {"full": "FULL", "normal": "NORMAL", "off": "OFF"}
_PATIENCE = 30  # seconds to wait for another writer, who holds its lock for milliseconds
_LEFT_OF_THE_LOG = 1 << 24  # bytes of SQLite's own log that stay on the disk once it is written


class Cursor(Protocol):
    """What a statement answers."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """A connection that begins and ends transactions when it is told to, and only then."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Cursor: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Database:
    """How to reach a database, and what it says in other words than others.

    Parameters
    ----------
    name
        For messages: without a password.
    connect
        A new connection.
    errors
        What it raises when it cannot do what it was asked for.
    blob
        Its type of bytes.
    begin, begin_setup
        How a transaction begins that will write, and one that makes tables where another process
        may be making them, too.
    lock
        What makes a SELECT lock the rows it finds.
    together
        Statements within are sent without waiting for the answer to each.
    """

    name: str
    connect: Callable[[], Connection]
    errors: tuple[type[Exception], ...]
    blob: str
    begin: str
    begin_setup: tuple[str, ...]
    lock: str
    together: Callable[[Any], AbstractContextManager[Any]]


def open_database(url: str, *, durability: Durability = "full") -> Database:
    """The database of a URL: `sqlite:///FILE` or `postgresql://USER@HOST/NAME`.

    Examples
    --------
    >>> open_database("sqlite:///cats.db").name
    'cats.db'
    """
    if durability not in _SYNCHRONOUS:
        raise ValueError(f'durability must be "full", "normal" or "off", not {durability!r}')
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return sqlite(url.removeprefix("sqlite:///"), durability=durability)
    if url.startswith(("postgresql://", "postgres://")):
        return postgres(url, durability=durability)
    raise ValueError(
        "a store is sqlite:///FILE (sqlite:////FILE from the root) or "
        f"postgresql://USER@HOST/NAME, not {without_password(url)!r}"
    )


def sqlite(
    path: str,
    *,
    durability: Durability = "full",
    connect: Callable[[], Connection] | None = None,
    errors: tuple[type[Exception], ...] = (sqlite3.Error,),
) -> Database:
    """A file of SQLite, the embedded default: any number of processes of one machine.

    `connect` and its `errors` may be another binding's, such as apsw's.
    """

    def connected() -> Connection:
        connection = (connect or _open)()
        try:
            connection.execute(f"PRAGMA busy_timeout = {1000 * _PATIENCE}").fetchall()
            _log_ahead(connection, path, errors)
            for statement in (
                f"PRAGMA journal_size_limit = {_LEFT_OF_THE_LOG}",
                f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}",
            ):
                connection.execute(statement).fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _open() -> Connection:
        # The stream's own lock sees to it that one thread at a time uses a connection.
        return sqlite3.connect(
            path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )

    return Database(
        name=path,
        connect=connected,
        errors=errors,
        blob="BLOB",
        begin="BEGIN IMMEDIATE",
        begin_setup=("BEGIN IMMEDIATE",),
        lock="",
        together=lambda connection: nullcontext(),
    )


def _log_ahead(connection: Connection, path: str, errors: tuple[type[Exception], ...]) -> None:
    """Turn the write-ahead log on, which is what the promises rest on.

    Of several who create a file at once some are told at once that it is locked: here SQLite does
    not wait, so we do.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            [(mode,)] = connection.execute("PRAGMA journal_mode = WAL").fetchall()
            break
        except errors as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)
    if mode != "wal":
        raise ValueError(
            f"{path}: SQLite keeps no write-ahead log there (but {mode!r}): a store is a file on a "
            "disk of this machine"
        )


def postgres(url: str, *, durability: Durability = "full") -> Database:
    """A database of PostgreSQL: any number of processes of any number of machines."""
    try:
        import psycopg
    except ImportError as error:
        raise ImportError(
            f"needs psycopg: pip install 'soba-tta[serve]' ({' '.join(str(error).split())[:200]})"
        ) from error

    def connected() -> Connection:
        connection = psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=_PATIENCE,
            # A server that is gone without a word is found out, and not waited for.
            keepalives_idle=_PATIENCE,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=1000 * _PATIENCE,
        )
        try:
            # A process that hangs in the middle of a transaction must not stop all others.
            connection.execute(f"SET lock_timeout = '{_PATIENCE}s'")
            connection.execute(f"SET statement_timeout = '{4 * _PATIENCE}s'")
            connection.execute(f"SET idle_in_transaction_session_timeout = '{2 * _PATIENCE}s'")
            if durability != "full":
                connection.execute("SET synchronous_commit = off")
            elif connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
                connection.execute("SET synchronous_commit = on")
        except BaseException:
            connection.close()
            raise
        return _PostgresConnection(connection)

    return Database(
        name=without_password(url),
        connect=connected,
        errors=(psycopg.Error,),
        blob="BYTEA",
        begin="BEGIN ISOLATION LEVEL READ COMMITTED",
        # Two that create a table at once, IF NOT EXISTS or not, fail: they take turns.
        begin_setup=("BEGIN", "SELECT pg_advisory_xact_lock(7160256001)"),
        lock=" FOR UPDATE",
        together=lambda connection: connection.together(),
    )


class _PostgresConnection:
    """psycopg's connection, asked in the words of SQLite: `?` for values, bytes as they are."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor:
        cursor: Cursor = self._connection.execute(
            statement.replace("?", "%s"), values or None, binary=True
        )
        return cursor

    def together(self) -> AbstractContextManager[Any]:
        pipeline: AbstractContextManager[Any] = self._connection.pipeline()
        return pipeline

    def close(self) -> None:
        self._connection.close()


def without_password(url: str) -> str:
    """A URL that may be printed.

    Examples
    --------
    >>> without_password("postgresql://me:secret@host/cats?sslmode=require")
    'postgresql://me@host/cats'
    """
    if "://" not in url:  # a list of settings may hold a password
        return "something without ://"
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    place = f"{user.partition(':')[0]}@{host}" if user else host
    return f"{parts.scheme}://{place}{parts.path}"
