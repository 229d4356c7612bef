"""The entry of the log that there are millions of: samples that were learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from soba.adapt.delta import Delta
from soba.serve.digests import DIGEST
from soba.serve.recent_ids import known

_HEAD = 8  # bytes: how many bytes of digests follow


@dataclass(frozen=True)
class Learned:
    """What samples put into the adapter, and the digests of their contents."""

    delta: Delta
    digests: np.ndarray  # (n,)

    def __len__(self) -> int:
        """How many samples were learned."""
        return len(self.delta)

    @property
    def records(self) -> np.ndarray:
        """Their ids and digests, in the order they were learned in."""
        return known(self.delta.ids, self.digests)

    def to_bytes(self) -> bytes:
        """Digests before the delta; none where all ids are hashes of the content."""
        digests = np.asarray(self.digests, DIGEST).tobytes() if self.digests.any() else b""
        return len(digests).to_bytes(_HEAD, "little") + digests + self.delta.to_bytes()

    @classmethod
    def from_bytes(cls, blob: bytes) -> Learned:
        """What `to_bytes` made."""
        end = _end_of_digests(blob)
        delta = Delta.from_bytes(blob[end:])
        digests = np.frombuffer(blob[_HEAD:end], DIGEST)
        if len(digests) == 0:
            digests = np.zeros(len(delta), DIGEST)
        if len(digests) != len(delta):
            raise ValueError(f"{len(digests)} digests of {len(delta)} samples")
        return cls(delta, digests)


def with_delta(blob: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """An entry whose delta is written otherwise."""
    end = _end_of_digests(blob)
    return blob[:end] + change(blob[end:])


def _end_of_digests(blob: bytes) -> int:
    return _HEAD + int.from_bytes(blob[:_HEAD], "little")
