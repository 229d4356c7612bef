"""Anyone's images: a folder of class folders, a flat folder, a table, or a list of files.

Class folders follow torchvision's ImageFolder, with one difference: names that are all numbers
are ordered as numbers (0, 1, 2, 10), not as strings (0, 1, 10, 2). Files are listed, not opened:
what turns out to be missing or unreadable is listed too, and whoever reads it will say so. Only
where nothing at all is there the listing itself is refused.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from soba.datasets._facts import as_spoken
from soba.datasets.archive import from_archives
from soba.datasets.base import ImageSet
from soba.datasets.labels import ordered, read_labels
from soba.encode.archives import is_archive
from soba.encode.files import is_remote
from soba.encode.image_files import PathLike, folder_images, is_image, matching, some
from soba.encode.lists import column, expand_braces, is_list, read_list, read_table


def load_images(
    source: PathLike | Sequence[PathLike], class_names: Sequence[str] | None = None
) -> ImageSet:
    """Whatever a person points at: a folder, a .csv or .txt list, an image, a pattern, tars or
    Parquet files in the same ways, a URL, or a list of images and patterns."""
    if not isinstance(source, str | os.PathLike):
        return from_files(source, class_names)
    path = os.fspath(source)
    if is_remote(path):
        return from_archives(path, class_names)
    if os.path.isdir(path):
        return from_folder(path, class_names)
    if path.lower().endswith(".csv"):
        return from_csv(path, class_names)
    paths = read_list(path) if is_list(path) else expand_braces(path)
    if any(map(is_remote, paths)) or _are_archives(paths):
        return from_archives(path, class_names)
    return from_files(paths, class_names)


def from_folder(
    folder: PathLike, class_names: Sequence[str] | None = None, *, labelled: bool | None = None
) -> ImageSet:
    """The images in a folder.

    Parameters
    ----------
    folder
        Either class folders with images at any depth below them, or images; where there are none,
        tars or Parquet files of images.
    class_names
        The classes in label order. Of class folders they must be the folders' names, or there
        must be as many as there are folders that are called by numbers. Without them the folders
        name the classes, underscores read as spaces.
    labelled
        True: folders are classes. False: all images at any depth, without labels. By default
        what is there decides; a folder with both images and folders of images is refused.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"{root}: not a folder")
    inside, loose = listed = folder_images(root)
    if labelled is None:
        if not inside and not loose and folder_images(root, is_archive).keys:
            return from_archives(root, class_names)
        if inside and loose:
            raise ValueError(
                f"{root}: holds both images and folders of images; say --labelled if the folders "
                "are classes, --unlabelled to take all images without labels"
            )
        labelled = bool(inside)
    if not labelled:
        return _image_set(root.name, class_names or (), listed.keys, None, root)
    order = ordered(inside)
    if class_names is None:
        names: Sequence[str] = [as_spoken(name) for name in order]
    else:
        names = class_names
        order = _match(root, order, names)
    keys = [key for name in order for key in inside.get(name, [])]
    labels = [label for label, name in enumerate(order) for _ in inside.get(name, [])]
    return _image_set(root.name, names, keys, labels, root)


def from_csv(
    file: PathLike, class_names: Sequence[str] | None = None, *, root: PathLike | None = None
) -> ImageSet:
    """The images a table lists in its columns "path" and, if it has one, "label".

    Paths are below `root`, by default the folder of the table. Labels are class names, or
    indices into `class_names`; without `class_names` the labels that occur are the classes.
    """
    table = Path(file)
    columns, rows = read_table(table)
    base = table.parent if root is None else Path(root)
    keys = column(table, rows, "path")
    labels = None
    names: Sequence[str] = class_names or ()
    if "label" in columns:
        names, labels = read_labels(table, column(table, rows, "label"), class_names)
    if keys and not any(os.path.isfile(base / key) for key in keys):
        raise ValueError(f"{table}: none of its images is there: {some(keys)}")
    return _image_set(table.stem, names, keys, labels, base)


def from_files(paths: Iterable[PathLike], class_names: Sequence[str] | None = None) -> ImageSet:
    """Images by path or by pattern ("shots/**/*.png"), without labels, each once.

    A pattern that matches folders and no image stands for the images below them.
    """
    keys = list(dict.fromkeys(key for path in paths for key in matching(os.fspath(path))))
    if keys and not any(map(os.path.isfile, keys)):
        raise ValueError(f"no image found: {some(keys)}")
    return _image_set("files", class_names or (), keys, None, None)


def _are_archives(paths: Sequence[str]) -> bool:
    """Whether paths and patterns stand for archives; where there are images, these are meant."""
    if any(is_image(os.path.basename(file)) for path in paths for file in matching(path)):
        return False
    return any(is_archive(file) for path in paths for file in matching(path, is_archive))


def _image_set(
    name: str,
    class_names: Sequence[str],
    keys: Sequence[str],
    labels: Sequence[int] | None,
    root: Path | None,
) -> ImageSet:
    if not keys:
        raise ValueError(f"{root or name}: holds no images")
    twice = [key for key, times in Counter(keys).items() if times > 1]
    if twice:
        raise ValueError(f"{root or name}: {len(twice)} images are listed twice: {some(twice)}")
    array = None if labels is None else np.array(labels, np.int64)
    return ImageSet(name, tuple(class_names), tuple(keys), array, root=root)


def _match(root: Path, folders: list[str], class_names: Sequence[str]) -> list[str]:
    """The folder of each class, in the order of the classes."""
    by_words: dict[str, str] = {}
    for folder in folders:
        words = as_spoken(folder).lower()
        if words in by_words:
            raise ValueError(
                f"{root}: two folders of one class {words!r}: {by_words[words]!r}, {folder!r}"
            )
        by_words[words] = folder
    spoken = [as_spoken(name).lower() for name in class_names]
    unknown = [folder for words, folder in by_words.items() if words not in set(spoken)]
    if not unknown:
        return [by_words.get(words, name) for words, name in zip(spoken, class_names, strict=True)]
    if all(folder.isdecimal() for folder in folders) and len(folders) == len(class_names):
        return folders
    raise ValueError(f"{root}: folders that are none of the class names: {some(unknown)}")
