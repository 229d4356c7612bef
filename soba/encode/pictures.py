"""One picture of a stream: a file, the content of one, a picture in memory, or what is no picture.

Each is read once, for its pixels and for an id that its content gives it: the bytes of a file;
mode, size and pixels of a picture in memory. The same content has the same id under every name, in
every run and on every machine, so that it is learned from once. A file and the picture that was
read from it are two contents: their bytes differ.
"""

from __future__ import annotations

import hashlib
import io
import threading
from abc import ABC, abstractmethod
from typing import Any, NoReturn

import numpy as np
from PIL import Image

from soba.encode._reading import ReadFailure
from soba.encode.files import open_file

_CHANNELS = (1, 3, 4)
_IN_PNG = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")  # modes that a PNG keeps as they are
_LOADING = threading.Lock()  # Pillow reads a picture's file once; two threads may not both do it


class Picture(ABC):
    """One image of a stream; `open` reads it and learns its `content_id`."""

    __slots__ = ("content_id", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.content_id = -1  # not opened yet

    @abstractmethod
    def open(self) -> Image.Image:
        """The image; whatever it raises is what is wrong with it."""

    @abstractmethod
    def content(self) -> bytes:
        """The image as the content of a file, such as one sends to a service."""


class FilePicture(Picture):
    """An image in a file, here or wherever fsspec reaches, called by its path."""

    __slots__ = ()

    def open(self) -> Image.Image:
        return self._decoded(self.content())

    def content(self) -> bytes:
        with open_file(self.name) as file:
            return file.read()

    def _decoded(self, content: bytes) -> Image.Image:
        self.content_id = content_id(content)
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            return image


class BytesPicture(FilePicture):
    """The content of an image file, such as a service is sent."""

    __slots__ = ("_content",)

    def __init__(self, name: str, content: bytes) -> None:
        super().__init__(name)
        self._content = content

    def content(self) -> bytes:
        return self._content


class MemoryPicture(Picture):
    """A PIL image, or pixels; see `image_of_pixels`."""

    __slots__ = ("_content",)

    def __init__(self, name: str, content: Any) -> None:
        super().__init__(name)
        self._content = content

    def open(self) -> Image.Image:
        image = self._loaded()
        palette = bytes(image.getpalette() or ())
        about = f"{image.mode} {image.width} {image.height}".encode()
        self.content_id = _id_of(about, palette, image.tobytes())
        return image

    def content(self) -> bytes:
        image, file = self._loaded(), io.BytesIO()
        plain = image if image.mode in _IN_PNG else image.convert("RGB")
        plain.save(file, "PNG")
        return file.getvalue()

    def _loaded(self) -> Image.Image:
        image = self._content
        if not isinstance(image, Image.Image):
            image = image_of_pixels(image)
        with _LOADING:
            image.load()
        return image


class NoPicture(Picture):
    """What was asked for and cannot be had, and why; `may_pass` if only just now."""

    __slots__ = ("may_pass", "problem")

    def __init__(self, name: str, problem: str, *, may_pass: bool = False) -> None:
        super().__init__(name)
        self.problem, self.may_pass = problem, may_pass

    def open(self) -> NoReturn:
        if self.may_pass:
            raise ReadFailure(None, self.problem, self.name)
        raise OSError(self.problem)

    def content(self) -> NoReturn:
        self.open()


def image_of_pixels(pixels: Any) -> Image.Image:
    """An array or tensor as a PIL image.

    (H, W) is grey. Of three axes the last or the first, of length 1, 3 or 4, is the channel's:
    grey, RGB or RGBA. Where both could be, it is the last of an array and the first of a tensor.
    Whole numbers are uint8, or uint16 where grey; floats lie between 0 and 1, black and white.

    Examples
    --------
    >>> image_of_pixels(np.zeros((20, 30, 3), np.uint8)).size
    (30, 20)
    >>> image_of_pixels(np.ones((3, 20, 30), np.float32)).getpixel((0, 0))
    (255, 255, 255)
    """
    is_a_tensor = is_tensor(pixels)
    array = _on_host(pixels) if is_a_tensor else np.asarray(pixels)
    if array.ndim == 3:
        array = _channels_last(array, first=is_a_tensor)
    if array.ndim not in (2, 3) or not array.size:
        raise ValueError(
            f"pixels of shape {array.shape}, where an image is (H, W), (H, W, 3) or (3, H, W)"
        )
    if array.dtype.kind == "b":
        array = array * np.uint8(255)
    elif array.dtype.kind == "f":
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise ValueError("floats of pixels must lie between 0, black, and 1, white")
        array = np.rint(array.astype(np.float64) * 255).astype(np.uint8)
    if array.dtype != np.uint8 and not (array.dtype == np.uint16 and array.ndim == 2):
        raise ValueError(f"pixels of type {array.dtype}, where uint8 or floats are read")
    return Image.fromarray(np.ascontiguousarray(array))


def content_id(content: bytes) -> int:
    """What an image file of this content is known by, found out without decoding it."""
    return _id_of(content)


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor, found out without importing torch."""
    return hasattr(value, "detach") and hasattr(value, "ndim")


def _on_host(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.float()  # numpy has no bfloat16
    array: np.ndarray = tensor.numpy()
    return array


def _channels_last(array: np.ndarray, *, first: bool) -> np.ndarray:
    """(H, W, channels), or (H, W) where there is one channel."""
    axes = [axis for axis in ((0, 2) if first else (2, 0)) if array.shape[axis] in _CHANNELS]
    if not axes:
        raise ValueError(f"pixels of shape {array.shape}: no axis of 3 channels, first or last")
    array = np.moveaxis(array, axes[0], -1)
    return array[:, :, 0] if array.shape[2] == 1 else array


def _id_of(*parts: bytes) -> int:
    """63 bits of a digest: a positive int64."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest(), "little") >> 1
