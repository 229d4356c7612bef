"""The ids of samples: what clients call them, or what they are, as numbers of 63 bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from numbers import Integral

import numpy as np

_MASK = (1 << 63) - 2  # the largest int64 is no id


def ids_of_names(names: Iterable[str | int]) -> np.ndarray:
    """(n,) int64: a hash of what each sample is called; numbers are called by their digits.

    Examples
    --------
    >>> ids_of_names(["cat 1", "cat 2"]).tolist() == ids_of_names(["cat 1", "cat 2"]).tolist()
    True
    >>> bool((ids_of_names(["7"]) == ids_of_names([7])).all())
    True
    """
    if isinstance(names, str | bytes):
        raise TypeError("ids must be a list of names, not one name")
    return np.array([_hashed(b"name", _called(name)) for name in names], np.int64)


def ids_of_features(rows: np.ndarray) -> np.ndarray:
    """(n,) int64: a hash of the values of each row."""
    plain = np.ascontiguousarray(rows, "<f4")
    return np.array([_hashed(b"row", row.tobytes()) for row in plain], np.int64)


def _called(name: object) -> bytes:
    if isinstance(name, bool) or not isinstance(name, str | Integral):
        raise TypeError(f"a sample is called by a string or a whole number, not by {name!r}")
    return str(name).encode("utf-8", "surrogateescape")


def _hashed(kind: bytes, content: bytes) -> int:
    digest = hashlib.blake2b(content, digest_size=8, person=b"soba " + kind).digest()
    return int.from_bytes(digest, "little") % _MASK
