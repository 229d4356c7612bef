"""The streams that a server has in memory: opened when asked for, let go when nobody asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from soba.serve.live_stream import LiveStream
from soba.serve.store import NoStream, StoreError


class StreamPool:
    """Streams by name. Threads share it; one opens a stream while others wait for that one only.

    Parameters
    ----------
    open
        Opens a stream of the database; raises `NoStream`.
    most
        Streams in memory, unless more are in use at once.
    """

    def __init__(self, open: Callable[[str], LiveStream], most: int) -> None:
        self._open, self._most = open, most
        self._lock = threading.Lock()
        self._streams: dict[str, LiveStream] = {}
        self._opening: dict[str, threading.Lock] = {}

    @contextmanager
    def use(self, name: str) -> Iterator[LiveStream]:
        """A stream that stays in memory while it is used; one that is gone leaves it."""
        live = self._taken(name) or self._opened(name)
        try:
            yield live
        except NoStream:
            self.drop(name)
            raise
        finally:
            with self._lock:
                live.users -= 1
                live.used = time.monotonic()

    def loaded(self) -> list[LiveStream]:
        """Those in memory."""
        with self._lock:
            return list(self._streams.values())

    def drop(self, name: str) -> None:
        """Let go of a stream; whoever uses it still has it."""
        with self._lock:
            live = self._streams.pop(name, None)
        if live is not None:
            live.stream.close()

    def unload(self, idle_since: float) -> None:
        """Let go of streams that nobody has used since, and of the longest idle of too many."""
        with self._lock:
            idle = sorted(
                # What the database cannot give back now stays, and answers.
                (live for live in self._streams.values() if not live.users and not live.stale),
                key=lambda live: live.used,
            )
            surplus = len(self._streams) - self._most
            leaving = [
                live for place, live in enumerate(idle) if place < surplus or live.used < idle_since
            ]
            for live in leaving:
                del self._streams[live.name]
        for live in leaving:
            live.stream.close()

    def close(self) -> None:
        """Let go of all."""
        for live in self.loaded():
            self.drop(live.name)

    def _open_or_make_room(self, name: str) -> LiveStream:
        """Open a stream; a database that has no connection left may have one for another's."""
        try:
            return self._open(name)
        except StoreError:
            idle = [live for live in self.loaded() if not live.users and not live.stale]
            if not idle:
                raise
            self.drop(min(idle, key=lambda live: live.used).name)
            return self._open(name)

    def _taken(self, name: str) -> LiveStream | None:
        with self._lock:
            live = self._streams.get(name)
            if live is not None:
                live.users += 1
            return live

    def _opened(self, name: str) -> LiveStream:
        with self._lock:
            opening = self._opening.setdefault(name, threading.Lock())
        with opening:
            try:
                live = self._taken(name)  # somebody else was faster
                if live is None:
                    live = self._open_or_make_room(name)
                    with self._lock:
                        self._streams[name] = live
                        live.users += 1
            finally:
                with self._lock:
                    self._opening.pop(name, None)
        self.unload(idle_since=0.0)
        return live
