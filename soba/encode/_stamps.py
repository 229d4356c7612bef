"""Whether an image file is still what it was when it was encoded.

A stamp is 64 bits: 32 of a file's number, size and times, and 32 of its content. The content is
read again only where those differ, so that a copied folder of the same pictures is the same.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

UNKNOWN = 0  # of an image that is no file
UNREADABLE = 1  # of a file that could not be read
UNMADE = 2**64 - 1  # of a row that is to be made again

_HALF = 2**32 - 1


def stamp(path: Path) -> int:
    """Of a file as it is now."""
    try:
        return _looks(path) << 32 | _content(path)
    except OSError:
        return UNREADABLE


def is_changed(path: Path, before: int) -> bool:
    """Whether a file is another one than when it was stamped.

    One that cannot be read now is not: a disk that is not there must not cost what was made of it.
    """
    if before == UNKNOWN:
        return False
    try:
        return _looks(path) != before >> 32 and _content(path) != before & _HALF
    except OSError:
        return before == UNMADE


def is_gone(path: Path, before: int) -> bool:
    """Whether a file that could be read when it was stamped cannot be found now."""
    return before not in (UNKNOWN, UNREADABLE, UNMADE) and not path.exists()


def _looks(path: Path) -> int:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path}: not a file")  # a pipe would be waited for
    looks = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return _first_bits(repr(looks).encode())


def _content(path: Path) -> int:
    with path.open("rb") as file:
        return _first_bits(hashlib.file_digest(file, "blake2b").digest())


def _first_bits(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=4).digest(), "little")
