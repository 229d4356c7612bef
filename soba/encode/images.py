"""What there is to encode: paths, folders, patterns, lists, archives and pictures in memory.

All of it is one stream of pictures (`soba.encode.pictures`), read as far as it is iterated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from soba.encode.archives import Archive, is_archive, kind_of
from soba.encode.files import is_pattern, is_remote, remote_files
from soba.encode.image_files import folder_images, matching, why_not_read
from soba.encode.lists import expand_braces, is_list, read_list
from soba.encode.pictures import (
    BytesPicture,
    FilePicture,
    MemoryPicture,
    NoPicture,
    Picture,
    is_tensor,
)


def list_images(images: Any) -> Iterator[Picture]:
    """The pictures of whatever a person points at, one after the other.

    Parameters
    ----------
    images
        A path, a folder (all images at any depth below it, in the order of their names; where it
        holds none, the archives in it), a pattern such as "shots/**/*.jpg" (one that matches
        folders and no image, as "shots/2024-*" may, stands for all images below them), a .csv with
        a column "path" or a .txt with a path on each line (relative to the list's folder), a tar
        (`soba.encode.tars`) or a Parquet file with images
        (`soba.encode.parquet_images`); braces as in "train-{000..015}.tar" stand for all they
        list, and URLs are opened by fsspec. Or a PIL image, the bytes of an image file, an array or
        a tensor (`soba.encode.pictures.image_of_pixels`), or a stack of these, (n, ...); or
        any iterable of all that, mixed and nested, which is read as far as it is iterated.

    Notes
    -----
    Files are called by their paths, PIL images by the file they were opened from, other pictures
    by their place in what was given: "image 0". What is no image is listed with what is wrong with
    it.
    """
    for entry in list_entries(images):
        if isinstance(entry, Archive):
            yield from entry.pictures()
        else:
            yield entry


def list_entries(images: Any) -> Iterator[Picture | Archive]:
    """The same, archives unopened: what can be listed without reading any image."""
    for place, listed in enumerate(_flattened(images)):
        yield listed if isinstance(listed, Picture | Archive) else _picture(listed, place)


def _flattened(images: Any) -> Iterator[Any]:
    """Pictures, PIL images, arrays of one image, and whatever else is no collection."""
    if isinstance(images, str | os.PathLike):
        yield from _files(os.fspath(images))
    elif isinstance(images, np.ndarray) or is_tensor(images):
        stacked = images.ndim > 3 or images.ndim == 1
        yield from (each for row in images for each in _flattened(row)) if stacked else (images,)
    elif isinstance(images, Iterable) and not isinstance(images, Image.Image | bytes):
        for each in images:
            yield from _flattened(each)
    else:
        yield images


def _picture(content: Any, place: int) -> Picture:
    name = f"image {place}"
    if isinstance(content, Image.Image):
        return MemoryPicture(str(getattr(content, "filename", "")) or name, content)
    if is_tensor(content):
        return MemoryPicture(name, content.detach().clone())  # whose memory may be used again
    if isinstance(content, np.ndarray):
        return MemoryPicture(name, content.copy())
    if isinstance(content, bytes):
        return BytesPicture(name, content)
    return NoPicture(name, f"an image is a path, a PIL image or an array, not {content!r:.80}")


def _files(path: str) -> Iterator[Picture | Archive]:
    """The files that a path, folder, pattern or list stands for."""
    for each in expand_braces(path):
        try:
            yield from _rows(each) if is_list(each) else map(_entry, _paths(each))
        except (OSError, ValueError, ImportError) as error:
            yield NoPicture(each, why_not_read(error).removeprefix(f"{each}: "))


def _entry(path: str) -> Picture | Archive:
    return Archive(path) if is_archive(path) else FilePicture(path)


def _rows(path: str) -> Iterator[Picture | Archive]:
    """The images of a list; one row without a path is no reason to leave the others unread."""
    for number, file in enumerate(read_list(path), 1):
        yield _entry(file) if file else NoPicture(f"{path}, row {number}", "no path")


def _paths(path: str) -> list[str]:
    """The images below a folder or that match a pattern; where there are none, the archives."""
    if is_remote(path):
        if kind_of(path) and not is_pattern(path):  # no need to ask whether it is a folder
            return [path]
        listed = remote_files(path)
        if listed is None:
            return [path]
        files = [file for file in listed if kind_of(file) == "files"] or list(
            filter(is_archive, listed)
        )
    elif Path(path).is_dir():
        root = Path(path)
        keys = folder_images(root).keys or folder_images(root, is_archive).keys
        files = [str(root / key) for key in keys]
    else:
        files = matching(path)
        if files == [path] or all(map(os.path.isdir, files)):
            files = matching(path, is_archive)
        if files != [path] and all(map(os.path.isdir, files)):
            raise ValueError("matches folders only, and they hold no images")
    if not files:
        raise ValueError("holds no images")
    return files
