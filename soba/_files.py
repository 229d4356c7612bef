"""Files that are either whole or not there: atomic writes, one writer, checksummed safetensors."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_HAS_LOCKS = os.name == "posix"
if _HAS_LOCKS:
    import fcntl

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# The checksum covers every byte of the file, its own 64 digits counted as zeros.
_BLANK = "0" * 64
_BLOCK = 1 << 24  # bytes written at a time
_FLOATS = {"<f2": "F16", "<f4": "F32", "<f8": "F64"}
_SIGNED = {"|i1": "I8", "<i2": "I16", "<i4": "I32", "<i8": "I64"}
_UNSIGNED = {"|u1": "U8", "<u2": "U16", "<u4": "U32", "<u8": "U64"}
DTYPES = _FLOATS | _SIGNED | _UNSIGNED | {"|b1": "BOOL"}
_NUMPY = {kind: dtype for dtype, kind in DTYPES.items()}
_CHECKSUM = re.compile(rb'("sha256":")([0-9a-f]{64})(")')


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file to write, which takes the place of `path` when all went well.

    A crash leaves the old file or the new one, never a half, and what it leaves besides is removed
    by the next one who writes the same file. Of a link, the file that it leads to is written.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder does not exist")
    if os.path.lexists(target) and not target.is_file():  # as root one could replace /dev/null
        raise ValueError(f"{path}: exists, and is not a file that can be replaced")
    remove_litter(target)
    temporary, file = _temporary(target)
    with file:
        try:
            with naming(path, temporary):
                yield temporary
                os.fsync(file.fileno())
                if not _HAS_LOCKS:
                    file.close()  # Windows moves no open file
                os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    if hasattr(os, "O_DIRECTORY"):  # make the rename itself survive a power cut
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str], temporary: Path | None = None) -> Iterator[None]:
    """A disk that is full says which file it was about."""
    try:
        yield
    except OSError as error:
        unnamed = error.filename is None and error.errno in _DISK_ERRORS
        if unnamed or (temporary is not None and error.filename == str(temporary)):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise


@contextlib.contextmanager
def alone(path: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """One process at a time works on this file or in this folder; a second one is refused.

    Where it is to `wait`, it waits until the first one is done. The lock is on a small file,
    `.lock` in a folder or `.NAME.lock` beside a file, which goes when the work is done. However
    the run ends, the system lets go of the lock.
    """
    place = Path(os.path.realpath(path))
    inside = place.is_dir()
    beside = place / ".lock" if inside else place.with_name(f".{place.name}.lock")
    if not _HAS_LOCKS:  # then nobody watches
        yield
        return
    with _locked(beside, path, "in this folder" if inside else "on this file", wait) as lock:
        try:
            yield
        finally:
            # The name goes first, then the lock: who waited for this file finds that it is gone.
            if _is_at(lock, beside):
                beside.unlink()


def _locked(beside: Path, path: str | os.PathLike[str], what: str, wait: bool) -> BinaryIO:
    """The lock file, open and locked."""
    while True:
        lock = beside.open("ab")
        try:
            free = _lock(lock, wait=wait)
        except OSError as error:
            warnings.warn(  # some network file systems have no locks
                f"{path}: cannot be locked ({error.strerror}); start no second run {what}",
                stacklevel=4,
            )
            return lock
        except BaseException:  # interrupted while it waited
            lock.close()
            raise
        if not free:
            lock.close()
            raise ValueError(f"{path}: another run is working {what}")
        if _is_at(lock, beside):
            return lock
        lock.close()  # it was removed by a run that has just ended: nobody else would find it


def _temporary(target: Path) -> tuple[Path, BinaryIO]:
    """A new file beside the target, locked for as long as it is open: the sign of a living run."""
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        with naming(target, temporary):
            file = temporary.open("xb")
        if _HAS_LOCKS:
            with contextlib.suppress(OSError):  # without locks nobody removes litter either
                _lock(file, wait=True)
        if _is_at(file, temporary):
            return temporary, file
        file.close()  # another one took it for litter before it was locked


def remove_litter(target: Path) -> None:
    """Remove what killed runs left of `replacing`; a locked file is still being written."""
    if not _HAS_LOCKS:  # nor a way to tell a living run from a dead one
        return
    litter = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.tmp")
    for name in filter(litter.fullmatch, os.listdir(target.parent)):
        temporary = target.with_name(name)
        with contextlib.suppress(OSError), temporary.open("rb+") as file:
            if _lock(file):
                temporary.unlink()


def _lock(file: BinaryIO, *, wait: bool = False) -> bool:
    """Lock an open file, until it is closed; False if somebody else holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK):
            return False
        raise
    return True


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether the open file is what that name leads to now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def parse_json(content: str | bytes) -> Any:
    """What JSON of any origin says; all that is wrong with it is a ValueError.

    >>> parse_json('{"a": [1]}')
    {'a': [1]}
    """
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def save_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file block by block: arrays may be memory maps larger than memory."""
    names, lead = _lead(path, arrays, metadata)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(lead)
        file.writelines(_blocks(arrays, names))


def save_checked(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]
) -> None:
    """Write arrays and JSON metadata as one safetensors file that carries its own checksum."""
    names, lead = _checked_lead(path, arrays, meta)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(lead)
        file.writelines(_blocks(arrays, names))


def checked_bytes(what: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bytes:
    """The bytes of such a file, for a place that is none; `what` it is, errors say."""
    names, lead = _checked_lead(what, arrays, meta)
    return b"".join([lead, *_blocks(arrays, names)])


def load_checked(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `save_checked` wrote; any damage raises a ValueError that names the file.

    The arrays are maps of the file, to be read only: what they hold is in memory once it is used.
    """
    with open(path, "rb") as file:
        lead = file.read(8)
        lead += file.read(min(int.from_bytes(lead, "little"), os.fstat(file.fileno()).st_size))
        digest = _Checksum(path, lead)
        while block := file.read(_BLOCK):
            digest.update(block)
        digest.check()
        content = np.memmap(file, np.uint8, "r")[len(lead) :]
    return _parsed(path, lead, content)


def read_checked_bytes(what: str, blob: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `checked_bytes` made; any damage raises a ValueError that says `what` it is.

    The arrays lie in the bytes, and can only be read.
    """
    size = 8 + int.from_bytes(blob[:8], "little")
    digest = _Checksum(what, bytes(blob[:size]))
    digest.update(memoryview(blob)[size:])
    digest.check()
    return _parsed(what, blob[:size], np.frombuffer(blob, np.uint8)[size:])


class _Checksum:
    """The checksum of a file as it is read, against the one that it carries."""

    def __init__(self, path: str | os.PathLike[str], lead: bytes) -> None:
        checksum = _CHECKSUM.search(lead)
        if checksum is None:
            raise ValueError(f"{path}: not a soba state file, or its header is damaged")
        self._path, self._due = path, checksum.group(2)
        blanked = lead[: checksum.start(2)] + _BLANK.encode() + lead[checksum.end(2) :]
        self._digest = hashlib.sha256(blanked)
        self.update = self._digest.update

    def check(self) -> None:
        if self._digest.hexdigest().encode() != self._due:
            raise ValueError(f"{self._path}: checksum mismatch, it is truncated or corrupted")


def _parsed(
    path: str | os.PathLike[str], lead: bytes, content: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the metadata that a header tells of."""
    try:
        header = parse_json(lead[8:])
        meta = parse_json(header.pop("__metadata__")["meta"])
        if not isinstance(meta, dict):
            raise ValueError("its metadata is no JSON object")
        return {name: _mapped(content, entry) for name, entry in header.items()}, meta
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not readable as a soba state file ({error})") from error


def _mapped(content: np.ndarray, entry: dict[str, Any]) -> np.ndarray:
    """An array as it lies in the file; what its header claims need not be so."""
    dtype, (start, end) = np.dtype(_NUMPY[entry["dtype"]]), entry["data_offsets"]
    if not 0 <= start <= end <= len(content):
        raise ValueError(f"an array from {start} to {end} of {len(content)} bytes")
    return content[start:end].view(np.ndarray).view(dtype).reshape(entry["shape"])


def _blocks(arrays: Mapping[str, np.ndarray], names: list[str]) -> Iterator[memoryview]:
    """The bytes of some arrays, in this order."""
    for name in names:
        array = np.atleast_1d(arrays[name])
        rows = max(1, _BLOCK // max(1, array.nbytes // max(1, len(array))))
        for start in range(0, len(array), rows):
            yield _little(array[start : start + rows]).data


def _lead(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> tuple[list[str], bytes]:
    """The order of the arrays in a safetensors file, and all that comes before them.

    safetensors' own writer puts the metadata in another order each time; here the same content
    makes the same bytes.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    # Widest numbers first, as safetensors has it, so that every array is aligned.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    for name in names:
        array = arrays[name]
        start, end = end, end + array.nbytes
        kind = DTYPES.get(array.dtype.newbyteorder("<").str)
        if kind is None:
            raise TypeError(f"{path}: {name} is of {array.dtype}, which is not stored")
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return names, len(text).to_bytes(8, "little") + text


def _checked_lead(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]
) -> tuple[list[str], bytes]:
    """The same for a file that carries a checksum of all its bytes."""
    texts = {"meta": json.dumps(meta, sort_keys=True), "sha256": _BLANK}
    names, lead = _lead(path, arrays, texts)
    digest = hashlib.sha256(lead)
    for block in _blocks(arrays, names):
        digest.update(block)
    blank = f'"sha256":"{_BLANK}"'.encode()
    return names, lead.replace(blank, f'"sha256":"{digest.hexdigest()}"'.encode(), 1)


def _little(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
