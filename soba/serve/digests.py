"""What tells samples apart that come under one name: a digest of the content, 8 bytes each.

An image is told by its bytes, since what an encoder makes of it depends on the batch it is in.
Given features may come from such an encoder, so theirs is no hash but a sketch: seven random
projections, each rounded to a byte. Rounding of the features moves a byte by one at the most, and
another sample nearly always moves one of the seven further. An id that is itself a hash of the
content needs no digest, and has 0.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np

DIGEST = np.dtype("<u8")
_IMAGE, _FEATURES = 1, 2  # the lowest byte says what the others are of
_PROJECTIONS = 7
_STEPS = 32  # in a unit of length: encoders round by a tenth of a step, photos lie 20 steps apart


def digests_of_images(content_ids: np.ndarray) -> np.ndarray:
    """(n,) hashes of the bytes of images -> (n,) digests: 56 bits of each."""
    shifted = content_ids.astype(DIGEST) << np.uint64(8)
    return np.asarray(shifted | np.uint64(_IMAGE), DIGEST)


def digests_of_features(rows: np.ndarray) -> np.ndarray:
    """(n, d) unit rows -> (n,) digests.

    Examples
    --------
    >>> rows = np.eye(2, 64)
    >>> one, rounded = digests_of_features(rows), digests_of_features(rows + 1e-5)
    >>> differ(one, rounded).tolist(), differ(one, one[::-1]).tolist()
    ([False, False], [True, True])
    """
    parts = np.empty((len(rows), DIGEST.itemsize), np.uint8)
    parts[:, 0] = _FEATURES
    steps = np.floor(_STEPS * (rows @ _signs(rows.shape[1])))  # (n, 7)
    parts[:, 1:] = steps.astype(np.int64) & 0xFF
    return parts.view(DIGEST)[:, 0]


def comparable(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(n,) bool: which pairs of digests are of the same kind of content."""
    return np.asarray((one ^ other) & np.uint64(0xFF) == 0)


def differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(n,) bool: which pairs of digests are comparable and of two samples."""
    parts, others = (_parts(digests) for digests in (one, other))
    gaps = (parts - others).view(np.int8)  # projections go round: 255 and 0 are neighbours
    far = ((gaps > 1) | (gaps < -1)).any(axis=1)
    apart = np.where(parts[:, 0] == _FEATURES, far, one != other)
    return np.asarray(comparable(one, other) & apart)


def _parts(digests: np.ndarray) -> np.ndarray:
    """(n,) -> (n, 8) bytes."""
    return np.ascontiguousarray(digests, DIGEST).view(np.uint8).reshape(-1, DIGEST.itemsize)


@functools.lru_cache(maxsize=8)
def _signs(dim: int) -> np.ndarray:
    """(d, 7) of -1 and 1, the same in all processes: of a unit row each makes about N(0, 1)."""
    bits = np.frombuffer(hashlib.shake_256(b"soba digest").digest(dim), np.uint8)
    return 2.0 * np.unpackbits(bits[:, None], axis=1)[:, :_PROJECTIONS].astype(np.float32) - 1.0
