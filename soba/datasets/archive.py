"""Anyone's images in tars or Parquet files, or at URLs; labels are read where Parquet has them.

Archives are read from front to back. Who asks for the images in their order, as encoders do, reads
them once; who goes back begins anew.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from PIL import Image

from soba._files import parse_json
from soba.datasets._facts import as_spoken
from soba.datasets.base import ImageSet
from soba.datasets.labels import read_labels
from soba.encode._parquet import open_parquet
from soba.encode.files import open_file
from soba.encode.image_files import PathLike, some
from soba.encode.pictures import NoPicture, Picture
from soba.encode.shards import SourceShard, list_shards

_LABEL = "label"
_HELD = 64  # pictures that threads may ask for out of their order


class _Reader:
    """Pictures of shards by their numbers; threads may share it."""

    def __init__(self, shards: Sequence[SourceShard]) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._next = 0
        self._pictures: Iterator[Picture] = iter(())
        self._held: dict[int, Picture] = {}

    def take(self, number: int) -> Picture:
        with self._lock:
            if number not in self._held and (number < self._next or not self._next):
                self._next, self._pictures = 0, _pictures(self._shards)
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
    """Images that lie in archives, or in a store.

    Parameters
    ----------
    shards
        The archives, or the images of the store.
    recipe
        What they looked like when they were listed: features of others are not theirs.
    """

    shards: tuple[SourceShard, ...] = ()
    recipe: str = ""

    @cached_property
    def _reader(self) -> _Reader:
        return _Reader(self.shards)

    def image(self, index: int) -> Image.Image:
        """The image, decoded."""
        return self._reader.take(index).open()


def from_archives(source: PathLike, class_names: Sequence[str] | None = None) -> ImageSet:
    """The images of tars or of Parquet files, or of a store, in the order of their names.

    Labels are those of a column "label" of all Parquet files: class names, or indices into
    `class_names` or into the names that Hugging Face notes in the files. A tar has none.

    Parameters
    ----------
    source
        A file, a folder, a pattern or braces, here or wherever fsspec reaches.
    """
    path = os.fspath(source)
    shards = list_shards(path)
    if shards[0].kind == "embeddings":
        raise ValueError(f"{path}: holds features, which go with --shards")
    problems, keys = [], []
    for picture in _pictures(shards):
        keys.append(picture.name)
        if isinstance(picture, NoPicture):
            if picture.may_pass:
                picture.open()  # raises: what comes after it would be left out for good
            problems.append(picture.problem)
    if len(problems) == len(keys):
        raise ValueError(f"{path}: {problems[0] if problems else 'holds no images'}")
    if len(set(keys)) < len(keys):
        keys = [f"{path}/{number}" for number in range(len(keys))]
    names, labels = class_names or (), None
    if shards[0].kind == "parquet":
        files = [shard.paths[0] for shard in shards]
        words = [_words(file) for file in files]
        if None not in words:
            every = [word for each in words for word in each or ()]
            names, indices = read_labels(path, every, class_names or _noted_names(path, files))
            labels = np.array(indices, np.int64)
    stem = os.path.basename(path.rstrip("/")).partition(".")[0]
    recipe = shards[0].stamp if len(shards) == 1 else _digest(shards)
    return ArchiveSet(stem, tuple(names), tuple(keys), labels, shards=shards, recipe=recipe)


def _pictures(shards: Sequence[SourceShard]) -> Iterator[Picture]:
    return chain.from_iterable(shard.pictures() for shard in shards)


def _digest(shards: Sequence[SourceShard]) -> str:
    stamps = " ".join(shard.stamp for shard in shards)
    return hashlib.blake2b(stamps.encode(), digest_size=16).hexdigest()


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


def _noted_names(source: str, files: Sequence[str]) -> list[str] | None:
    """The class names that the files note, all the same ones."""
    names, *others = map(_names_in, files)
    if any(other != names for other in others):
        raise ValueError(f"{source}: its files note different class names; say which are meant")
    return names


def _names_in(path: str) -> list[str] | None:
    """The class names that Hugging Face's writer leaves in the metadata of a file."""
    with open_file(path) as source, open_parquet(source) as file:
        note = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        names = parse_json(note)["info"]["features"][_LABEL]["names"]
    except (ValueError, KeyError, TypeError):
        return None
    return [as_spoken(str(name)) for name in names]
