"""Images -> features, batch by batch, by threads that work ahead of those who use them.

While a batch is learned from, or written, the encoder has the next one, or as many as it takes at
once, and those behind are decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

from soba.encode._reading import may_pass
from soba.encode.encoder import Encoder
from soba.encode.image_files import why_not_read
from soba.encode.views import ViewMaker

_AHEAD = 2  # batches that are read before the first one is encoded
_Decoding = tuple[tuple["Openable", ...], list[Future["np.ndarray | str"]]]


class Images(Protocol):
    """What can be encoded: keys in a fixed order, and how to open each."""

    @property
    def keys(self) -> tuple[str, ...]: ...

    def image(self, index: int) -> Image.Image: ...


class Openable(Protocol):
    """One image that can be encoded."""

    @property
    def name(self) -> str: ...

    def open(self) -> Image.Image: ...


@dataclass(frozen=True)
class Encoded:
    """One batch: features of the images that could be read, and what was wrong with the others."""

    start: int
    stop: int
    indices: np.ndarray  # (m,) of the images below, in order
    features: np.ndarray  # (m, d) or (m, V, d) float32 unit rows
    broken: dict[int, str]  # index -> why it could not be read
    images: tuple[Any, ...]  # all of the batch as they were given, the broken ones too

    @property
    def read(self) -> list[Any]:
        """The images that could be read: one a row of the features."""
        return [self.images[index - self.start] for index in self.indices]

    def without_images(self) -> Encoded:
        """The same with names and ids alone: the images themselves need not be held."""
        names = tuple(Named(picture.name, picture.content_id) for picture in self.images)
        return replace(self, images=names)


class Named(NamedTuple):
    """What is left of a picture that was let go, or was never there: a name and an id."""

    name: str
    content_id: int


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
    step = batch_images(batch, views)
    if start % step:
        raise ValueError(f"start must be a multiple of {step}, not {start}")
    listed = (_Numbered(images, index) for index in range(start, len(images.keys)))
    return encode_stream(encoder, listed, batch=batch, start=start, views=views, workers=workers)


def encode_stream(
    encoder: Encoder,
    images: Iterable[Openable],
    *,
    batch: int = 64,
    start: int = 0,
    views: ViewMaker | None = None,
    workers: int = 2,
    raise_failures: bool = False,
) -> Iterator[Encoded]:
    """Encode images as they come, however many there will be; four batches are held at a time.

    `start` is the number of the first one; see `encode`. If the images break off with an
    error, it is raised after those that came before it are encoded. An image that cannot be read
    is reported; with `raise_failures` only what is damaged is, and a failure that may pass is
    raised, for those who keep what is reported.
    """
    source = _Batches(images, batch_images(batch, views))
    prepare = _Prepare(encoder, views, raise_failures)
    decoding: deque[_Decoding] = deque()
    encoding: deque[Future[Encoded]] = deque()
    decoders = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    # Who uses the features works beside these threads, as many as the encoder has batches at once.
    at_once = encoder.batches_at_once
    encoders = ThreadPoolExecutor(at_once, thread_name_prefix="encode")
    with encoders, decoders:

        def decode(count: int) -> None:
            for _ in range(count):
                if pictures := source.take():
                    futures = [decoders.submit(prepare, each) for each in pictures]
                    decoding.append((pictures, futures))

        def encode_next() -> None:
            nonlocal start
            job = (encoder, start, *decoding.popleft(), views is not None)
            start += len(job[2])
            encoding.append(encoders.submit(_encoded, *job))

        decode(_AHEAD + 1)
        try:
            while decoding or encoding:
                while decoding and len(encoding) <= at_once:
                    encode_next()
                part = encoding.popleft().result()
                decode(1)
                yield part
        finally:
            for part_to_come in encoding:
                part_to_come.cancel()
            for _, futures in decoding:
                for future in futures:
                    future.cancel()
    if source.error is not None:
        raise source.error


def batch_images(batch: int, views: ViewMaker | None) -> int:
    """How many images one batch of the encoder holds."""
    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    return batch if views is None else max(1, batch // views.count)


@dataclass(frozen=True)
class _Prepare:
    """A picture -> its pixels (views, ...), or why there are none."""

    encoder: Encoder
    views: ViewMaker | None
    raise_failures: bool

    def __call__(self, picture: Openable) -> np.ndarray | str:
        try:
            image = picture.open()
        except Exception as error:  # Pillow's decoders raise nearly every kind there is
            if self.raise_failures and may_pass(error):
                raise
            return why_not_read(error)
        try:
            if self.views is not None:
                return self.views(image, picture.name)
            return self.encoder.preprocess(image)[None]
        except Exception as error:
            return str(error) or type(error).__name__


class _Batches:
    """Images in batches, up to their end or to the error that they break off with."""

    def __init__(self, images: Iterable[Openable], size: int) -> None:
        self.error: Exception | None = None
        self._images = iter(images)
        self._size = size

    def take(self) -> tuple[Openable, ...]:
        """The next batch; an empty one where there are no more."""
        batch: list[Openable] = []
        try:
            if self.error is None:
                batch.extend(islice(self._images, self._size))  # keeps what came before an error
        except Exception as error:
            self.error = error
        return tuple(batch)


@dataclass(frozen=True)
class _Numbered:
    """One of a set of images."""

    images: Images
    index: int

    @property
    def name(self) -> str:
        return self.images.keys[self.index]

    def open(self) -> Image.Image:
        return self.images.image(self.index)


def _encoded(
    encoder: Encoder,
    start: int,
    images: tuple[Openable, ...],
    decoded: list[Future[np.ndarray | str]],
    with_views: bool,
) -> Encoded:
    """One batch through the encoder, once it is decoded; its first image has number `start`."""
    ready = {start + place: future.result() for place, future in enumerate(decoded)}
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
    broken = dict(sorted(broken.items()))
    return Encoded(start, start + len(images), indices, features, broken, images)
