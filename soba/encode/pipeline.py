"""Images -> features, batch by batch: decoding runs ahead in threads while the encoder works."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
from PIL import Image

from soba.encode.encoder import Encoder
from soba.encode.views import ViewMaker

_AHEAD = 2  # batches decoded while one is being encoded


class Images(Protocol):
    """What can be encoded: keys in a fixed order, and how to open each."""

    @property
    def keys(self) -> tuple[str, ...]: ...

    def image(self, index: int) -> Image.Image: ...


@dataclass(frozen=True)
class Encoded:
    """One batch: features of the images that could be read, and what was wrong with the others."""

    start: int
    stop: int
    indices: np.ndarray  # (m,) of the images below, in order
    features: np.ndarray  # (m, d) or (m, V, d) float32 unit rows
    broken: dict[int, str]  # index -> why it could not be read


def encode(
    encoder: Encoder,
    images: Images,
    *,
    batch: int = 64,
    start: int = 0,
    views: ViewMaker | None = None,
    workers: int = 2,
) -> Iterator[Encoded]:
    """Encode images from `start` on. An image that cannot be read is reported, never fatal.

    With views each image is encoded `views.count` times; a batch then holds fewer images, so
    that memory stays the same. Batches begin at multiples of their size, whatever `start` is,
    so that a continued run computes what an undisturbed one does, bit for bit.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    step = batch_images(batch, views)
    if start % step:
        raise ValueError(f"start must be a multiple of {step}, not {start}")

    def prepare(index: int) -> np.ndarray | str:
        try:
            image = images.image(index)
            if views is not None:
                return views(image, images.keys[index])
            return encoder.preprocess(image)[None]
        except Exception as error:  # Pillow's decoders raise nearly every kind there is
            return str(error) or type(error).__name__

    total = len(images.keys)
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        starts = iter(range(start, total, step))
        waiting: deque[tuple[range, list[Future[np.ndarray | str]]]] = deque()

        def submit(count: int) -> None:
            for first in islice(starts, count):
                span = range(first, min(first + step, total))
                waiting.append((span, [pool.submit(prepare, index) for index in span]))

        submit(_AHEAD + 1)
        try:
            while waiting:
                span, futures = waiting.popleft()
                ready = {
                    index: future.result() for index, future in zip(span, futures, strict=True)
                }
                submit(1)
                yield _encoded(encoder, span, ready, views is not None)
        finally:
            for _, futures in waiting:
                for future in futures:
                    future.cancel()


def batch_images(batch: int, views: ViewMaker | None) -> int:
    """How many images one batch of the encoder holds."""
    return batch if views is None else max(1, batch // views.count)


def _encoded(
    encoder: Encoder, span: range, ready: dict[int, np.ndarray | str], with_views: bool
) -> Encoded:
    fine = {index: pixels for index, pixels in ready.items() if isinstance(pixels, np.ndarray)}
    broken = {index: why for index, why in ready.items() if isinstance(why, str)}
    count = len(next(iter(fine.values()))) if fine else 1
    if fine:
        features = encoder.encode_pixels(np.concatenate(list(fine.values())))
    else:
        features = np.empty((0, encoder.width), np.float32)
    indices = np.array(list(fine), np.int64)
    features = features.reshape(len(fine), count, encoder.width)
    lengths = np.linalg.norm(features, axis=2)
    sound = (np.isfinite(lengths) & (lengths > 0)).all(axis=1)
    broken |= {int(i): "the encoder gave it no direction" for i in indices[~sound]}
    indices, features = indices[sound], features[sound]
    if not with_views:
        features = features[:, 0]
    return Encoded(span.start, span.stop, indices, features, dict(sorted(broken.items())))
