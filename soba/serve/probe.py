"""Whether a database answers, asked by one thread at a time, and by nobody for long."""

from __future__ import annotations

import threading

from soba.serve.databases import Database
from soba.serve.store import Store, StoreError

_PATIENCE = 2.0  # seconds


class DatabaseProbe:
    """Asks on a connection of its own, since others hold theirs while they wait for a lock."""

    def __init__(self, database: Database) -> None:
        self._store, self._lock = Store(database), threading.Lock()
        self._asking: threading.Thread | None = None
        self._answered = False

    def answers(self) -> bool:
        """Whether it does; a question that hangs is asked once, however many want to know."""
        with self._lock:
            if self._asking is None or not self._asking.is_alive():
                self._answered = False
                self._asking = threading.Thread(target=self._ask, name="probe", daemon=True)
                self._asking.start()
            asking = self._asking
        asking.join(_PATIENCE)
        return self._answered and not asking.is_alive()

    def close(self) -> None:
        """Let go of the connection, unless somebody still waits for it."""
        if self._asking is None or not self._asking.is_alive():
            self._store.close()

    def _ask(self) -> None:
        try:
            self._store.names()
            self._answered = True
        except StoreError:
            pass
