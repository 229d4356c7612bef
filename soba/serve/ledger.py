"""What is written about streams and never learned from: feedback, curves, and who made them."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from soba.serve.store import Store

_TABLES = (
    """CREATE TABLE IF NOT EXISTS feedback (
        stream TEXT NOT NULL, id TEXT NOT NULL, label TEXT NOT NULL, answered TEXT NOT NULL,
        zero_shot TEXT NOT NULL, at DOUBLE PRECISION NOT NULL, PRIMARY KEY (stream, id))""",
    """CREATE TABLE IF NOT EXISTS point (
        stream TEXT NOT NULL, version BIGINT NOT NULL, content TEXT NOT NULL,
        PRIMARY KEY (stream, version))""",
    "CREATE TABLE IF NOT EXISTS owner (stream TEXT PRIMARY KEY, owner TEXT NOT NULL)",
)
_SAY = """INSERT INTO feedback VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (stream, id)
    DO UPDATE SET label = excluded.label, answered = excluded.answered,
    zero_shot = excluded.zero_shot, at = excluded.at"""
_COUNTS = """SELECT COUNT(*), COALESCE(SUM(CASE WHEN label = answered THEN 1 ELSE 0 END), 0),
    COALESCE(SUM(CASE WHEN label = zero_shot THEN 1 ELSE 0 END), 0)
    FROM feedback WHERE stream = ?"""
_DRAW = """INSERT INTO point VALUES (?, ?, ?)
    ON CONFLICT (stream, version) DO UPDATE SET content = excluded.content"""
_POINTS = "SELECT content FROM point WHERE stream = ? ORDER BY version DESC LIMIT ?"
_OWN = "INSERT INTO owner VALUES (?, ?) ON CONFLICT (stream) DO NOTHING"
_OWNED = """SELECT COUNT(*) FROM owner WHERE owner = ?
    AND EXISTS (SELECT 1 FROM stream WHERE stream.name = owner.stream)"""
_FORGET = tuple(f"DELETE FROM {table} WHERE stream = ?" for table in ("feedback", "point", "owner"))


class Feedback(NamedTuple):
    """How often people said that an answer was right."""

    images: int = 0
    adapted: int = 0
    zero_shot: int = 0


class Ledger(Store):
    """The tables beside those of the log, in the same database."""

    tables = (*Store.tables, *_TABLES)
    forgets = _FORGET

    def say(self, stream: str, id_: str, label: str, answered: str, zero_shot: str) -> None:
        """The true label of an image that was answered; saying it again changes it."""
        self._write(_SAY, (stream, id_, label, answered, zero_shot, time.time()))

    def feedback(self, stream: str) -> Feedback:
        """What was said of a stream's answers so far."""
        [row] = self._read(_COUNTS, (stream,))
        return Feedback(*map(int, row))

    def draw(self, stream: str, version: int, point: dict[str, Any]) -> None:
        """Add a point to a stream's curves, or put another in the place of this version's."""
        self._write(_DRAW, (stream, version, json.dumps(point)))

    def points(self, stream: str, most: int = 1000) -> list[dict[str, Any]]:
        """The last points of the curves, oldest first."""
        rows = self._read(_POINTS, (stream, most))
        return [json.loads(content) for (content,) in reversed(rows)]

    def own(self, stream: str, owner: str) -> None:
        """Somebody has made a stream."""
        self._write(_OWN, (stream, owner))

    def owned(self, owner: str) -> int:
        """How many streams there are that somebody has made."""
        [(count,)] = self._read(_OWNED, (owner,))
        return int(count)

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        with self._turn, self._reaching() as connection:
            connection.execute(self.database.begin)
            connection.execute(statement, values)
            connection.execute("COMMIT")
