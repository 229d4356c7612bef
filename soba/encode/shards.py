"""Shards of a source: parts that workers encode on their own, the same ones at every listing.

A shard is a small value that can be pickled and written as JSON. It says where its images are, in
which order, and what their files looked like when they were listed; it holds none of them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from soba.encode.archives import Archive, kind_of
from soba.encode.embeddings import count_embeddings, embedding_blocks, tables_beside
from soba.encode.files import MISSING, for_each, is_pattern, is_remote, looks_of, remote_files
from soba.encode.image_files import PathLike, folder_images, matching, some
from soba.encode.lists import expand_braces, is_list, read_list
from soba.encode.pictures import FilePicture, NoPicture, Picture

KINDS = {
    "files": "images",
    "tar": "tars",
    "parquet": "Parquet files",
    "embeddings": "embeddings",
}


@dataclass(frozen=True)
class SourceShard:
    """A part of a source: some image files, one tar, one Parquet file, or an array of features.

    Parameters
    ----------
    kind
        "files", "tar", "parquet" or "embeddings".
    paths
        Of the images; or of the archive; or of the .npy file and its table, if it has one.
    stamp
        A digest of names, sizes and times of change (or of the tags that stores give them).
    count
        How many rows there are, where that is known without reading all of them.
    """

    kind: str
    paths: tuple[str, ...]
    stamp: str
    count: int | None = None

    def pictures(self) -> Iterator[Picture]:
        """One picture for each row, in order: a row's number is its picture's place.

        What cannot be had is a `soba.encode.pictures.NoPicture`, or says so when it is
        opened. Where a tar is cut off, the last one says so.
        """
        if self.kind == "embeddings":
            raise ValueError(f"{self.paths[0]}: holds features, not images")
        if self.kind != "files":
            return Archive(self.paths[0]).pictures()
        return (FilePicture(path) if path else NoPicture(path, "no path") for path in self.paths)

    def features(self) -> Iterator[tuple[list[str], np.ndarray]]:
        """Keys and (n, d) float32 unit rows, block by block; rows without a direction are NaN."""
        if self.kind != "embeddings":
            raise ValueError(f"{self.paths[0]}: holds images, not features")
        path, *tables = self.paths
        return embedding_blocks(path, *tables)

    def changed(self) -> str | None:
        """What is different now from when the shard was listed; None: nothing."""
        looks = looks_of(self.paths, fresh=True)
        if _stamp(self.paths, looks) == self.stamp:
            return None
        pairs = zip(self.paths, looks, strict=True)
        if missing := [path for path, look in pairs if path and look == MISSING]:
            return f"{some(missing)}: not there"
        first, *more = filter(None, self.paths)
        others = f" and {len(more)} more" if more else ""
        return f"{first}{others}: not what was listed, size or time of change differ"

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self) | {"paths": list(self.paths)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """A shard as it was listed; what is none is a ValueError.

        Examples
        --------
        >>> shard = SourceShard("tar", ("a.tar",), "0123")
        >>> SourceShard.from_json(shard.to_json()) == shard
        True
        """
        if not isinstance(value, dict) or set(value) != {"kind", "paths", "stamp", "count"}:
            raise ValueError(f"not a shard of a source: {value!r:.80}")
        kind, paths, stamp, count = (value[key] for key in ("kind", "paths", "stamp", "count"))
        is_one = kind in list(KINDS) and isinstance(stamp, str)
        is_one &= isinstance(paths, list) and all(isinstance(path, str) for path in paths)
        if not is_one or not 1 <= len(paths) <= {"files": len(paths), "embeddings": 2}.get(kind, 1):
            raise ValueError(f"not a shard of a source: {value!r:.80}")
        if count is not None and (type(count) is not int or count < 0):
            raise ValueError(f"not the number of rows of a shard: {count!r:.80}")
        return cls(kind, tuple(paths), stamp, count)


def list_shards(
    source: PathLike | Iterable[PathLike], *, size: int = 10_000
) -> tuple[SourceShard, ...]:
    """The shards of a source, in the order of their names.

    Parameters
    ----------
    source
        A folder, a pattern, a .csv or .txt list, or several of them, here or wherever fsspec
        reaches. Braces stand for the paths that they list: "train-{000..015}.tar". Images are cut
        into shards of `size` files; a tar or Parquet file is a shard, and so is a .npy file of
        features with the table beside it (`soba.encode.embeddings`).

    Notes
    -----
    A source holds one kind: images and tars in one folder are a ValueError. What a list names and
    is not there is in its shard all the same, and is recorded by whoever reads it.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    paths = [path for each in given for path in expand_braces(os.fspath(each))]
    listed = {path: _files(path) for path in paths}
    every = sorted({file for files in listed.values() for file in files})
    kind, files = _one_kind(", ".join(map(str, given)), every)
    tables = [table for file in files if kind == "embeddings" for table in tables_beside(file)]
    # All are asked for at once: of a store, each answer is waited for.
    looks = dict(zip([*files, *tables], looks_of([*files, *tables]), strict=True))
    for path in paths:
        if listed[path] == [path] and is_remote(path) and looks.get(path) == MISSING:
            raise ValueError(f"{path}: not found")
    if kind == "files":
        parts = [files[start : start + size] for start in range(0, len(files), size)]
        counts: Sequence[int | None] = list(map(len, parts))
    else:
        parts = [[file, *_table(kind, file, looks)] for file in files]
        counts = for_each(files, count_embeddings if kind == "embeddings" else _count)
    return tuple(
        SourceShard(kind, tuple(part), _stamp(part, [looks[path] for path in part]), count)
        for part, count in zip(parts, counts, strict=True)
    )


def _files(path: str) -> list[str]:
    """All that a path, folder, pattern or list stands for, of whatever kind.

    A remote file is not asked for here, where it would be one at a time.
    """
    if is_list(path):
        files = read_list(path)
    elif is_remote(path):
        is_file = kind_of(path) is not None and not is_pattern(path)
        listed = None if is_file else remote_files(path)
        files = [path] if listed is None else list(filter(kind_of, listed))
    elif Path(path).is_dir():
        keys = folder_images(Path(path), _is_known).keys
        files = [str(Path(path) / key) for key in keys]
    else:
        files = matching(path, _is_known)
        if files != [path] and all(map(os.path.isdir, files)):
            files = []
    if not files:
        raise ValueError(f"{path}: holds no images, tars, Parquet files or embeddings")
    if files == [path] and not is_remote(path) and not os.path.lexists(path):
        raise ValueError(f"{path}: not found")
    return files


def _is_known(name: str) -> bool:
    return kind_of(name) is not None


def _one_kind(source: str, files: Sequence[str]) -> tuple[str, list[str]]:
    """The kind of all files, and the files without the tables and texts of embeddings."""
    if not files:
        raise ValueError("a source of no files")
    # A folder that may not be listed is among images: whoever reads it says why.
    kinds = {file: kind_of(file) or "files" for file in files}
    arrays = [file for file, kind in kinds.items() if kind == "embeddings"]
    if any("img_emb" in _folders(file) for file in arrays):  # clip-retrieval's layout
        kinds = {file: kind for file, kind in kinds.items() if "text_emb" not in _folders(file)}
    for table in {table for file in arrays for table in tables_beside(file)}:
        kinds.pop(table, None)
    several = sorted({KINDS[kind] for kind in kinds.values()})
    if len(several) > 1:
        raise ValueError(
            f"{source}: holds {' and '.join(several)}; say which with a pattern such as '*.tar'"
        )
    return next(iter(kinds.values())), list(kinds)


def _folders(path: str) -> list[str]:
    return path.split("/")[:-1]


def _table(kind: str, file: str, looks: Mapping[str, str]) -> list[str]:
    """The table of an array of features, if it has one."""
    if kind != "embeddings":
        return []
    return [table for table in tables_beside(file) if looks[table] != MISSING][:1]


def _count(path: str) -> int | None:
    return Archive(path).count()


def _stamp(paths: Sequence[str], looks: Sequence[str]) -> str:
    content = json.dumps(list(zip(paths, looks, strict=True))).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
