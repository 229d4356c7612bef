"""What a data set's folders should hold, and what of it is not there. Nothing opens an image."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from soba.encode.image_files import leads_somewhere, some


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
                names = {entry.name for entry in listed if leads_somewhere(entry)}
            there.update(key for key in inside if PurePosixPath(key).name in names)
    return there


def text_lines(file: Path) -> list[str]:
    """The lines of a text file that say something; a file in another encoding is named."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text") from error
    return [line for line in lines if line.strip()]


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
