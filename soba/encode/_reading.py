"""Files that cannot be read just now, told apart from files whose content is damaged.

What is damaged is damaged at every reading. A connection that breaks off, a store that is busy or a
process that has too many files open may do better the next time, so whoever keeps a record of
broken images must not take these for one. Where the error comes from tells them apart: its kind
does not, since decoders, pyarrow and stores all raise OSError.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

# What a path may lead to for good: nothing, something else than a file, or what is not for us.
_LASTING = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
}


class ReadFailure(OSError):
    """A file could not be opened or read, for a reason that may pass.

    >>> print(ReadFailure(104, "Connection reset by peer", "s3://bucket/a.tar"))
    s3://bucket/a.tar: Connection reset by peer
    """

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def may_pass(error: Exception) -> bool:
    """Whether a reading that ended with this error may succeed another time.

    >>> may_pass(OSError(116, "Stale file handle")), may_pass(OSError("broken data stream"))
    (True, False)
    """
    if isinstance(error, ReadFailure):
        return True
    return isinstance(error, OSError) and error.errno not in {None, *_LASTING}


class ReadFile(io.BufferedIOBase):
    """A file whose every failure is a `ReadFailure`."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path, self._file = path, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def read(self, size: int | None = -1, /) -> bytes:
        with self._failing():
            return self._file.read(-1 if size is None else size)

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with self._failing():
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            super().close()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # fsspec's file systems raise nearly every kind there is
            raise _failure(self._path, error) from error


@contextmanager
def opening(path: str, *, is_remote: bool) -> Iterator[None]:
    """What hinders opening a file is a `ReadFailure`, unless it is there to stay."""
    try:
        yield
    except OSError as error:
        kinds = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
        # Errors of this machine have a number, but for those that we raise about what is no file.
        if may_pass(error) or (is_remote and error.errno is None and not isinstance(error, kinds)):
            raise _failure(path, error) from error
        raise


def _failure(path: str, error: Exception) -> ReadFailure:
    if isinstance(error, OSError) and error.strerror:
        return ReadFailure(error.errno, error.strerror, path)
    words = str(error).removeprefix(f"{path}: ") or type(error).__name__
    return ReadFailure(None, words, path)
