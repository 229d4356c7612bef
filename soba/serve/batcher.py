"""Dynamic batches: whatever waits while the encoder works is encoded at once when it is done."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import numpy as np


class EncodesPixels(Protocol):
    """What a batcher needs of an encoder."""

    def encode_pixels(self, pixels: np.ndarray) -> np.ndarray: ...


class _Item(NamedTuple):
    pixels: np.ndarray  # (3, size, size)
    feature: Future[np.ndarray]


class Batcher:
    """One thread that encodes what any number of others bring; close it to end the thread.

    Examples
    --------
    >>> class Sums:
    ...     def encode_pixels(self, pixels):
    ...         return pixels.sum(axis=(2, 3))
    >>> batcher = Batcher(Sums(), most=64)
    >>> batcher.encode([np.ones((3, 2, 2)), np.zeros((3, 2, 2))]).tolist()
    [[4.0, 4.0, 4.0], [0.0, 0.0, 0.0]]
    >>> batcher.close()
    """

    def __init__(
        self,
        encoder: EncodesPixels,
        most: int,
        observe: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._encoder, self._most, self._observe = encoder, most, observe
        self._items: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="encoder", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Images that nobody has begun to encode."""
        return len(self._items)

    def encode(self, pixels: list[np.ndarray]) -> np.ndarray:
        """(n, d) features of prepared images; returns when they are encoded."""
        items = [_Item(each, Future()) for each in pixels]
        with self._changed:
            if self._closed:
                raise RuntimeError("the encoder has been closed")
            self._items.extend(items)
            self._changed.notify()
        return np.stack([item.feature.result() for item in items])

    def close(self) -> None:
        """Encode what waits, then end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            try:
                features = self._encoder.encode_pixels(np.stack([item.pixels for item in batch]))
            except Exception as error:
                for item in batch:
                    item.feature.set_exception(error)
                continue
            self._observe(len(batch))
            for item, feature in zip(batch, features, strict=True):
                item.feature.set_result(feature)

    def _next(self) -> list[_Item]:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed)
            return [self._items.popleft() for _ in range(min(self._most, len(self._items)))]
