"""Anyone's images in one file: a tar, or a Parquet file, whose labels are read where it has them.

An archive is read from front to back. Who asks for its images in their order, as encoders do, reads
it once; who goes back begins anew.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from soba._files import parse_json
from soba.datasets._facts import as_spoken
from soba.datasets.base import ImageSet
from soba.datasets.labels import read_labels
from soba.encode._parquet import open_parquet
from soba.encode.archives import Archive, kind_of
from soba.encode.files import open_file
from soba.encode.image_files import PathLike, some
from soba.encode.pictures import NoPicture, Picture
from soba.encode.shards import list_shards

_LABEL = "label"
_HELD = 64  # pictures that threads may ask for out of their order


class _Reader:
    """Pictures of an archive by their numbers; threads may share it."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._lock = threading.Lock()
        self._next = 0
        self._pictures: Iterator[Picture] = iter(())
        self._held: dict[int, Picture] = {}

    def take(self, number: int) -> Picture:
        with self._lock:
            if number not in self._held and (number < self._next or not self._next):
                self._next, self._pictures = 0, self._archive.pictures()
            while number not in self._held:
                picture = next(self._pictures, None)
                if picture is None:
                    self._next = 0
                    raise OSError("the archive has changed since it was listed")
                self._held[self._next] = picture
                self._held.pop(self._next - _HELD, None)
                self._next += 1
            return self._held.pop(number)


@dataclass(frozen=True, eq=False)
class ArchiveSet(ImageSet):
    """Images that lie in one file.

    Parameters
    ----------
    file
        The archive.
    recipe
        What the archive looked like when it was listed: features of another are not its.
    """

    file: str = ""
    recipe: str = ""

    @cached_property
    def _reader(self) -> _Reader:
        return _Reader(Archive(self.file))

    def image(self, index: int) -> Image.Image:
        """The image, decoded."""
        return self._reader.take(index).open()


def from_archive(file: PathLike, class_names: Sequence[str] | None = None) -> ImageSet:
    """The images of a tar or a Parquet file, in their order.

    Labels are those of a column "label" of a Parquet file: class names, or indices into
    `class_names` or into the names that Hugging Face notes in the file. A tar has none.
    """
    path = os.fspath(file)
    [shard] = list_shards(path)
    problems, keys = [], []
    for picture in Archive(path).pictures():
        keys.append(picture.name)
        if isinstance(picture, NoPicture):
            problems.append(picture.problem)
    if len(problems) == len(keys):
        raise ValueError(f"{path}: {problems[0] if problems else 'holds no images'}")
    if len(set(keys)) < len(keys):
        keys = [f"{path}/{number}" for number in range(len(keys))]
    names, labels = class_names or (), None
    if kind_of(path) == "parquet" and (words := _words(path)) is not None:
        names, indices = read_labels(path, words, class_names or _noted_names(path))
        labels = np.array(indices, np.int64)
    stem = os.path.basename(path).partition(".")[0]
    return ArchiveSet(stem, tuple(names), tuple(keys), labels, file=path, recipe=shard.stamp)


def _words(path: str) -> list[str] | None:
    """The labels as they stand in the file; None where it has none, or says so with -1."""
    with open_file(path) as source, open_parquet(source) as file:
        if _LABEL not in file.schema_arrow.names:
            return None
        labels = file.read([_LABEL], use_threads=False)[_LABEL].to_pylist()
    if all(label in (None, -1) for label in labels):
        return None
    missing = [str(row) for row, label in enumerate(labels) if label in (None, "", -1)]
    if missing:
        raise ValueError(f"{path}: no {_LABEL} in rows {some(missing)}")
    return list(map(str, labels))


def _noted_names(path: str) -> list[str] | None:
    """The class names that Hugging Face's writer leaves in the metadata of a file."""
    with open_file(path) as source, open_parquet(source) as file:
        note = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        names = parse_json(note)["info"]["features"][_LABEL]["names"]
    except (ValueError, KeyError, TypeError):
        return None
    return [as_spoken(str(name)) for name in names]
