"""Files by their paths: on this machine, or wherever fsspec reaches (s3://, gs://, http://, ...).

A path with a protocol is given to fsspec, all others to the system. Names stay as they were given:
a relative path stays relative, and what lies below a URL begins with that URL.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from soba.encode._imports import no_package
from soba.encode._reading import ReadFile, opening
from soba.encode.image_files import check_file

_PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::|://)")
_WEB = ("http://", "https://")
MISSING = "missing"
Answer = TypeVar("Answer")
_REQUESTS = 16  # at a time: each of them waits for an answer from afar
# What tells the versions of a file apart, best first; file systems know one or the other.
_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "checksum",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "modified",
    "created",
)


def is_remote(path: str) -> bool:
    """Whether fsspec is to open this path.

    Examples
    --------
    >>> is_remote("s3://bucket/cat.jpg"), is_remote("photos/cat.jpg"), is_remote("c:/cat.jpg")
    (True, False, False)
    """
    return _PROTOCOL.match(path) is not None


def plain_name(path: str) -> str:
    """A path without the query of a web address, which may be signed by one.

    Examples
    --------
    >>> plain_name("https://host/a.tar?signature=0"), plain_name("what?.png")
    ('https://host/a.tar', 'what?.png')
    """
    return path.partition("?")[0] if path.startswith(_WEB) else path


def is_pattern(path: str) -> bool:
    """Whether a path has wildcards."""
    return glob.has_magic(plain_name(path))


def open_file(path: str) -> BinaryIO:
    """A file to read from; whatever hinders it is raised before anything is waited for.

    Where that may pass, as a broken connection does, it is a
    `soba.encode._reading.ReadFailure`, now or when the file is read.
    """
    with opening(path, is_remote=is_remote(path)):
        file = _open_remote(path) if is_remote(path) else _open_local(path)
    return cast(BinaryIO, ReadFile(path, file))


def beside(path: str, name: str) -> str:
    """The path of what a list in a file means by a name: relative to the folder of the list.

    Examples
    --------
    >>> beside("lists/test.csv", "cat.jpg"), beside("s3://bucket/test.csv", "cat.jpg")
    ('lists/cat.jpg', 's3://bucket/cat.jpg')
    """
    if is_remote(name) or os.path.isabs(name):
        return name
    if is_remote(path):
        return f"{path.rpartition('/')[0]}/{name}"
    return str(Path(path).parent / name)


def remote_files(path: str) -> list[str] | None:
    """All files below a remote folder, or that match a pattern, sorted; None: the path is neither.

    A pattern that matches folders only stands for all files below them. Hidden files, and those in
    hidden folders, are left out.
    """
    with _naming(path):
        root, files = _below(path)
    if files is None:
        return None
    start = len(_file_system(root)[1].rstrip("/"))
    below = sorted({name[start:].lstrip("/") for name in files})
    folder = root if root.endswith("/") else f"{root}/"
    return [folder + name for name in below if not any(p[:1] == "." for p in name.split("/"))]


def looks_of(paths: Sequence[str], *, fresh: bool = False) -> list[str]:
    """Of each file its size and when it was changed, or the tag that stands for its content.

    No file is read. One that cannot be looked at is `MISSING`. Where it is to be `fresh`, what
    fsspec remembers of a listing does not serve.
    """
    if fresh:
        remote = [_file_system(path)[0] for path in paths if is_remote(path)]
        for system in {id(system): system for system in remote}.values():
            system.invalidate_cache()
    return for_each(paths, _looks)


def for_each(paths: Sequence[str], ask: Callable[[str], Answer]) -> list[Answer]:
    """What `ask` says of each path; of remote ones, many are asked for at a time."""
    if not any(map(is_remote, paths)):
        return [ask(path) for path in paths]
    with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="requests") as pool:
        return list(pool.map(ask, paths))


def _below(path: str) -> tuple[str, list[str] | None]:
    """What all names begin with, and the files, as their file system calls them."""
    system, inner = _file_system(path)
    system.invalidate_cache()
    if is_pattern(path):
        # What comes before the folder of the first wildcard is the same in all names.
        protocol, _, rest = path.partition("://")
        root = f"{protocol}://{re.split(r'[*?[]', rest)[0].rpartition('/')[0]}"
        matches = system.glob(inner, detail=True)
        files = [name for name, about in matches.items() if about["type"] != "directory"]
        return root, files or [name for folder in matches for name in system.find(folder)]
    return path.rstrip("/"), system.find(inner) if system.isdir(inner) else None


def _open_local(path: str) -> BinaryIO:
    check_file(Path(path))
    return open(path, "rb")


def _open_remote(path: str) -> BinaryIO:
    system, inner = _file_system(path)
    with _naming(path):
        file: BinaryIO = system.open(inner, "rb")
        return file


def _looks(path: str) -> str:
    if is_remote(path):
        return _remote_looks(path)
    try:
        status = os.stat(path)
    except OSError:
        return MISSING
    return f"{status.st_size} {status.st_mtime_ns}"


def _remote_looks(path: str) -> str:
    """A store that does not answer is an error, and not a file that is missing."""
    system, inner = _file_system(path)
    try:
        with _naming(path):
            about = system.info(inner)
    except FileNotFoundError:
        return MISSING
    version = next((about[key] for key in _VERSIONS if about.get(key) is not None), "")
    return f"{about.get('size')} {version}"


def _file_system(path: str) -> tuple[Any, str]:
    """fsspec's file system for a path, and how that calls the path."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise no_package("fsspec", error) from error
    try:
        system, inner = url_to_fs(path)
    except (ImportError, ValueError) as error:  # it says which package reaches that protocol
        raise type(error)(f"{path}: {error}") from error
    return system, inner


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """What a store raises says which path it is about, and is of a kind that is expected here."""
    try:
        yield
    except FileNotFoundError as error:  # fsspec says the path, and not that it is missing
        raise FileNotFoundError(2, "No such file or directory", path) from error
    except (OSError, ValueError, ImportError):
        raise
    except Exception as error:  # the errors of stores have no kind in common
        raise OSError(f"{path}: {str(error) or type(error).__name__}") from error
