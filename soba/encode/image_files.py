"""Image files on this machine: which there are in folders and patterns, and how one is opened.

Files are listed, not opened: what turns out to be missing or unreadable is listed too, and whoever
reads it will say so.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

PathLike = str | os.PathLike[str]
Wanted = Callable[[str], bool]  # whether a file of this name is meant

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
_SHOWN = 10


def is_image(name: str) -> bool:
    """Whether a file name is that of an image, hidden files apart.

    Examples
    --------
    >>> is_image("a.JPEG"), is_image("._a.jpg"), is_image("README.txt")
    (True, False, False)
    """
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


# Lists ------------------------------------------------------------------------------------------


class Entries(NamedTuple):
    """What is in a folder, by name, hidden things apart."""

    folders: list[str]
    files: list[str]
    dangling: list[str]  # links that lead nowhere


def entries(folder: Path) -> Entries:
    """What is in a folder, each kind sorted."""
    listed = Entries([], [], [])
    with os.scandir(folder) as inside:
        for entry in inside:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                listed.folders.append(entry.name)
            else:
                (listed.files if leads_somewhere(entry) else listed.dangling).append(entry.name)
    return Entries(*map(sorted, listed))


def leads_somewhere(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is no link, or one whose target is there."""
    return not entry.is_symlink() or os.path.exists(entry.path)


class FolderImages(NamedTuple):
    """Images at any depth below a folder, as paths below it."""

    inside: dict[str, list[str]]  # those of each folder in it; folders without images left out
    loose: list[str]  # those that lie in the folder itself

    @property
    def keys(self) -> list[str]:
        """All of them, sorted."""
        return sorted(self.loose + [key for keys in self.inside.values() for key in keys])


def folder_images(root: Path, wanted: Wanted = is_image) -> FolderImages:
    """The images below a folder; links in circles and unreadable folders are among them.

    `wanted` tells by its name whether a file is meant, where that is not an image.
    """
    folders, files, dangling = entries(root)
    here = frozenset({_identity(root)})
    inside = {name: _below(root / name, name, here, wanted) for name in folders}
    inside = {name: keys for name, keys in inside.items() if keys}
    return FolderImages(inside, [name for name in sorted(files + dangling) if wanted(name)])


def matching(path: str, wanted: Wanted = is_image) -> list[str]:
    """The images that match a pattern; the path itself if it is none, or if nothing matches.

    Where a pattern matches folders and no image, these are the images at any depth below the
    folders, each once, or the folders themselves if they hold none.
    """
    if not glob.has_magic(path) or os.path.lexists(path):
        return [path]
    matches = sorted(glob.glob(path, recursive=True))
    folders = [match for match in matches if os.path.isdir(match)]
    inside = set(folders)
    images = [m for m in matches if m not in inside and wanted(os.path.basename(m))]
    if not images:
        below = (
            os.path.join(folder, key)
            for folder in folders
            for key in folder_images(Path(folder), wanted).keys
        )
        images = list(dict.fromkeys(below))  # "**/" matches a folder and the folders in it
    return images or folders or [path]


# One image --------------------------------------------------------------------------------------


def open_image(path: Path) -> Image.Image:
    """The image, as it is on disk."""
    check_file(path)
    with Image.open(path) as image:
        image.load()
        return image


def check_file(path: Path) -> None:
    """Raise what hinders reading a file, before it is opened: pipes would be waited for for ever.

    Listings hand on whatever they could not look into, so that all of it is reported in one place.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        os.listdir(path)  # says why, if it may not be read
        raise IsADirectoryError("a folder without images of its own")
    if not stat.S_ISREG(mode):
        raise OSError("a pipe, socket or device, not a file")


def why_not_read(error: Exception) -> str:
    """What was wrong with an image, in words that need its name beside them.

    The system's errors repeat the name, and Pillow's say where in memory the bytes were.

    Examples
    --------
    >>> why_not_read(FileNotFoundError(2, "No such file or directory", "cat.png"))
    'No such file or directory'
    """
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def some(names: Sequence[str]) -> str:
    """The first ten of a list, and how many more there are.

    Examples
    --------
    >>> some(["a", "b"])
    'a, b'
    >>> some([str(i) for i in range(12)])
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more'
    """
    listed = ", ".join(names[:_SHOWN])
    return listed if len(names) <= _SHOWN else f"{listed} and {len(names) - _SHOWN} more"


def _below(folder: Path, name: str, above: frozenset[tuple[int, int]], wanted: Wanted) -> list[str]:
    """Images at any depth below a folder, as keys that start with `name`.

    Links that lead nowhere are among them, and so is a folder that cannot be listed, or one that
    is linked to from within itself: whoever reads it will say that it cannot be read.
    """
    try:
        identity = _identity(folder)
        folders, files, dangling = entries(folder)
    except OSError:
        return [name]
    if identity in above:
        return [name]
    keys = [f"{name}/{file}" for file in sorted(files + dangling) if wanted(file)]
    for deeper in folders:
        keys += _below(folder / deeper, f"{name}/{deeper}", above | {identity}, wanted)
    return keys


def _identity(folder: Path) -> tuple[int, int]:
    """What stays the same under all names that links give a folder."""
    status = folder.stat()
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links in a circle, or into a folder that may not be entered
        return False
