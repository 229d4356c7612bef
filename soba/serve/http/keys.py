"""Bearer keys from a file that may change while the server runs."""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from pathlib import Path

_log = logging.getLogger(__name__)
_LEAST = 16  # characters of a key


class Keys:
    """One key a line, with a name behind it if you like; `#` begins a comment.

    To rotate, add the new key, hand it out, then remove the old one: each change counts from the
    next request on. Keys of one name are one owner. A file that cannot be read lets nobody in.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._owners: dict[bytes, str] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file; raises what is wrong with it."""
        status = self._path.stat()
        owners: dict[bytes, str] = {}
        for number, line in enumerate(self._path.read_text("utf-8").splitlines(), 1):
            key, *name = line.partition("#")[0].split(maxsplit=1) or [""]
            if not key:
                continue
            if len(key) < _LEAST or not key.isascii():
                raise ValueError(
                    f"{self._path}, line {number}: a key has {_LEAST} plain characters at least"
                )
            digest = _digest(key)
            owners[digest] = "".join(name).strip() or digest.hex()[:12]
        if not owners:
            raise ValueError(f"{self._path}: holds no key")
        self._owners = owners
        self._stamp = status.st_mtime_ns, status.st_size, status.st_ino

    def owner(self, authorization: str | None) -> str | None:
        """Whose key a request has; None: it has none that counts."""
        self._reload_if_changed()
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        # All keys are compared, and digests of them, so that no time tells how close one came.
        asked, owner = _digest(key.strip()), None
        for digest, name in self._owners.items():
            if hmac.compare_digest(digest, asked):
                owner = name
        return owner

    def _reload_if_changed(self) -> None:
        with self._lock:
            try:
                status = self._path.stat()
                if (status.st_mtime_ns, status.st_size, status.st_ino) != self._stamp:
                    self.reload()
            except (OSError, ValueError) as error:
                if self._owners:
                    _log.error("nobody is let in: %s", error)
                self._owners, self._stamp = {}, None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
