"""Listing folders, and saying what is not there. Nothing here opens an image."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
_SHOWN = 10


def is_image(name: str) -> bool:
    """Whether a file name is that of an image, hidden files apart.

    >>> is_image("a.JPEG"), is_image("._a.jpg"), is_image("README.txt")
    (True, False, False)
    """
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


class Entries(NamedTuple):
    """What is in a folder, by name, hidden things apart."""

    folders: list[str]
    files: list[str]
    dangling: list[str]  # links that lead nowhere


def entries(folder: Path) -> Entries:
    """What is in a folder, each kind sorted."""
    found = Entries([], [], [])
    with os.scandir(folder) as inside:
        for entry in inside:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                found.folders.append(entry.name)
            else:
                (found.files if _leads_somewhere(entry) else found.dangling).append(entry.name)
    return Entries(*map(sorted, found))


def by_folder(keys: Iterable[str]) -> dict[str, list[str]]:
    """Keys grouped by the folder they lie in, in their order."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(str(PurePosixPath(key).parent), []).append(key)
    return groups


def present(root: Path, keys: Iterable[str]) -> set[str]:
    """Those of `keys`, paths below `root`, that exist: one listing a folder, no call a file.

    Links are followed: one that leads nowhere is not there.
    """
    there: set[str] = set()
    for folder, inside in by_folder(keys).items():
        if (root / folder).is_dir():
            with os.scandir(root / folder) as listed:
                names = {entry.name for entry in listed if _leads_somewhere(entry)}
            there.update(key for key in inside if PurePosixPath(key).name in names)
    return there


def text_lines(file: Path) -> list[str]:
    """The lines of a text file that say something; a file in another encoding is named."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text") from error
    return [line for line in lines if line.strip()]


def some(names: Sequence[str]) -> str:
    """The first ten of a list, and how many more there are.

    >>> some(["a", "b"])
    'a, b'
    >>> some([str(i) for i in range(12)])
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more'
    """
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def absent_classes(labels: Iterable[int], class_names: Sequence[str], split: str) -> list[str]:
    """The problem, if it is one, that some classes have no image.

    >>> absent_classes([0, 2], ["ant", "bee", "cat"], "test")
    ["no test image of 1 of 3 classes: 'bee' (label 1)"]
    """
    seen = set(labels)
    absent = [f"{name!r} (label {i})" for i, name in enumerate(class_names) if i not in seen]
    if not absent:
        return []
    return [f"no {split} image of {len(absent)} of {len(class_names)} classes: {some(absent)}"]


def _leads_somewhere(entry: os.DirEntry[str]) -> bool:
    return not entry.is_symlink() or os.path.exists(entry.path)
