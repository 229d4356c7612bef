"""Files that hold many images: tars and Parquet files, by their names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from soba.encode.files import plain_name
from soba.encode.image_files import is_image
from soba.encode.parquet_images import count_rows, parquet_pictures
from soba.encode.pictures import Picture
from soba.encode.tars import tar_pictures

_SUFFIXES = {".tar": "tar", ".tar.gz": "tar", ".tgz": "tar", ".parquet": "parquet"}


def kind_of(path: str) -> str | None:
    """What a file holds by its name: "files" (one image), "tar", "parquet", "embeddings" or None.

    Examples
    --------
    >>> kind_of("a.JPG"), kind_of("s3://bucket/train.tar.gz"), kind_of("emb.npy"), kind_of("a.md")
    ('files', 'tar', 'embeddings', None)
    """
    name = os.path.basename(plain_name(path))
    if name.startswith("."):
        return None
    if is_image(name):
        return "files"
    lower = name.lower()
    if lower.endswith(".npy"):
        return "embeddings"
    return next((kind for suffix, kind in _SUFFIXES.items() if lower.endswith(suffix)), None)


def is_archive(path: str) -> bool:
    """Whether a file holds many images, by its name."""
    return kind_of(path) in ("tar", "parquet")


@dataclass(frozen=True)
class Archive:
    """A file of many images, not opened yet."""

    name: str

    def pictures(self) -> Iterator[Picture]:
        """Its pictures, one at a time; damage is among them, and never the end of the stream."""
        return (
            tar_pictures(self.name) if kind_of(self.name) == "tar" else parquet_pictures(self.name)
        )

    def count(self) -> int | None:
        """How many there are, where that is known without reading all of them."""
        return None if kind_of(self.name) == "tar" else count_rows(self.name)
