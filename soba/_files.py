"""Files that are either whole or not there: atomic writes, and checksummed safetensors."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

# The checksum covers every byte of the file, its own 64 digits counted as zeros.
_BLANK = "0" * 64
_BLOCK = 1 << 24  # bytes written at a time
_FLOATS = {"<f2": "F16", "<f4": "F32", "<f8": "F64"}
_SIGNED = {"|i1": "I8", "<i2": "I16", "<i4": "I32", "<i8": "I64"}
_UNSIGNED = {"|u1": "U8", "<u2": "U16", "<u4": "U32", "<u8": "U64"}
DTYPES = _FLOATS | _SIGNED | _UNSIGNED | {"|b1": "BOOL"}
_CHECKSUM = re.compile(rb'("sha256":")([0-9a-f]{64})(")')


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file to write, which takes the place of `path` when all went well.

    A crash leaves the old file or the new one, never a half.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: the folder does not exist")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes private files; results are not
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


def save_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file block by block: arrays may be memory maps larger than memory."""
    names, lead = _lead(path, arrays, metadata)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(lead)
        for name in names:
            array = arrays[name]
            rows = max(1, _BLOCK // max(1, array.nbytes // max(1, len(array))))
            for start in range(0, len(array), rows):
                file.write(_little(array[start : start + rows]).data)


def save_checked(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]
) -> None:
    """Write arrays and JSON metadata as one safetensors file that carries its own checksum."""
    texts = {"meta": json.dumps(meta, sort_keys=True), "sha256": _BLANK}
    names, lead = _lead(path, arrays, texts)
    content = lead + b"".join(_little(arrays[name]).tobytes() for name in names)
    digest = hashlib.sha256(content).hexdigest()
    blank = f'"sha256":"{_BLANK}"'.encode()
    with replacing(path) as temporary:
        temporary.write_bytes(content.replace(blank, f'"sha256":"{digest}"'.encode(), 1))


def load_checked(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what :func:`save_checked` wrote; any damage raises a ValueError that names the file."""
    content = Path(path).read_bytes()
    found = _CHECKSUM.search(content, 0, _header_end(content))
    if found is None:
        raise ValueError(f"{path}: not a soba state file, or its header is damaged")
    blanked = content[: found.start(2)] + _BLANK.encode() + content[found.end(2) :]
    if hashlib.sha256(blanked).hexdigest().encode() != found.group(2):
        raise ValueError(f"{path}: checksum mismatch, the file is truncated or corrupted")
    try:
        arrays = safetensors.numpy.load(content)
        header = json.loads(content[8 : _header_end(content)])
        meta = json.loads(header["__metadata__"]["meta"])
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not readable as a soba state file ({error})") from error
    return {name: array.copy() for name, array in arrays.items()}, meta


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


def _little(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def _header_end(content: bytes) -> int:
    """Where the JSON header of a safetensors file stops (its length leads the file)."""
    return min(8 + int.from_bytes(content[:8], "little"), len(content))
