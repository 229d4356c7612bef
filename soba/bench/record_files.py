"""Records as files: their names, their reading and writing, and one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from soba._files import replacing
from soba.bench.evaluate import Record


def digest(parts: Record) -> str:
    """A short name for all that decides a content."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def plain_name(name: str) -> str:
    """As a file name on any system."""
    return re.sub(r"[^\w.+-]", "_", name)


def read_object(path: Path) -> Record:
    """What :func:`write_record` wrote; a file that holds no JSON object is named."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: not a record; remove it to run its cell again")
    return found


def write_record(path: Path, content: Record) -> None:
    """Whole, or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


@contextlib.contextmanager
def alone(results: Path) -> Iterator[None]:
    """Two runs at once would write into each other's begun feature files."""
    try:
        import fcntl
    except ImportError:  # not on this system; then nobody watches
        yield
        return
    with (results / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK):
                raise ValueError(f"{results}: another run is working in this folder") from error
            warnings.warn(  # some network file systems have no locks
                f"{results}: cannot be locked ({error.strerror}); start no second run in it",
                stacklevel=3,
            )
        yield  # the system lets go of the lock, however the run ends
