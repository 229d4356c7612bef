"""Feature files, read: what they name, whatever of it is there, unchecked.

`.safetensors` is ours, memory-mapped; `.npz` and `.pt` of other people are read too, without ever
running what a pickle holds. What a header claims is not believed before it was read, and all that
is wrong with a file is a ValueError that names it.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors

from soba._files import DTYPES, parse_json

ARRAYS = (
    "image_features",
    "text_features",
    "prompt_features",
    "labels",
    "support_features",
    "support_labels",
    "val_features",
    "val_labels",
)
LISTS = ("class_names", "prompts", "keys")
TEXTS = ("encoder_fingerprint", "templates_fingerprint", "view_policy")
_NAMES = (*ARRAYS, *LISTS, *TEXTS, "logit_scale", "fingerprint")  # the last: of both, in old files
_NUMPY = {kind: dtype for dtype, kind in DTYPES.items()}
_TORCH_FLOATS = ("torch.float16", "torch.float32", "torch.float64")
_BLOCK = 1 << 24  # bytes read at a time


def _read_safetensors(file: Path) -> dict[str, Any]:
    try:
        with safetensors.safe_open(file, framework="numpy") as checked:
            meta = parse_json((checked.metadata() or {}).get("soba", "{}"))
        with file.open("rb") as raw:
            length = int.from_bytes(raw.read(8), "little")
            header = parse_json(raw.read(length))
        values = {key: value for key, value in dict(meta).items() if key in _NAMES}
        for name, entry in header.items():
            if name in ARRAYS:
                start = 8 + length + entry["data_offsets"][0]
                values[name] = _mapped(file, name, entry["dtype"], start, tuple(entry["shape"]))
        return values
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"{file}: not a readable safetensors feature file ({error})") from error


def _mapped(file: Path, name: str, kind: str, start: int, shape: tuple[int, ...]) -> np.ndarray:
    """An array as it lies in the file; safetensors hands out copies, too large for large sets."""
    if kind == "BF16":  # the upper half of a float32, which numpy has no name for
        halves = np.memmap(file, "<u2", "r", start, shape)
        return (halves.astype(np.uint32) << 16).view(np.float32)
    if kind not in _NUMPY:
        raise ValueError(f"{name} is of {kind}, which is not read")
    return np.memmap(file, _NUMPY[kind], "r", start, shape)


def _read_npz(file: Path) -> dict[str, Any]:
    arrays = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for name in _NAMES:
                if f"{name}.npy" in archive.namelist():
                    with archive.open(f"{name}.npy") as member:
                        arrays[name] = _read_npy(member, name)
    except MemoryError as error:
        raise ValueError(f"{file}: does not fit into memory") from error
    except Exception as error:  # zipfile and its decoders raise many kinds, all about the file
        raise ValueError(f"{file}: not a readable .npz feature file ({error})") from error
    return {name: value.item() if value.ndim == 0 else value for name, value in arrays.items()}


def _read_npy(member: IO[bytes], name: str) -> np.ndarray:
    """An array of an archive. What its header claims is only believed when it has been read."""
    version = np.lib.format.read_magic(member)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"{name} is of version {version}, which is not read")
    shape, columns_first, dtype = readers[version](member)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are not read")
    size = math.prod(shape) * dtype.itemsize
    content = bytearray()
    while len(content) < size and (block := member.read(min(_BLOCK, size - len(content)))):
        content += block
    if len(content) < size or min(shape, default=0) < 0:
        raise ValueError(f"{name} claims the shape {shape} and holds {len(content)} bytes")
    return np.ndarray(shape, dtype, content, order="F" if columns_first else "C")


def read_npy(file: Path) -> np.ndarray:
    """The array of a .npy file."""
    try:
        with file.open("rb") as content:
            return _read_npy(content, "it")
    except MemoryError as error:
        raise ValueError(f"{file}: does not fit into memory") from error
    except ValueError as error:
        raise ValueError(f"{file}: not a readable .npy file ({error})") from error


def _read_pt(file: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        hint = "pip install 'soba-tta[torch]'"
        raise ImportError(f"{file}: reading .pt needs torch: {hint}") from error
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds; all mean that the file is not to be used
        raise ValueError(
            f"{file}: not a file of plain tensors; nothing in it was run ({type(error).__name__})"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: holds a {type(content).__name__}, not a dictionary of tensors")
    values = {}
    for name in _NAMES:
        value = content.get(name)
        if isinstance(value, torch.Tensor):
            try:
                array = _array_of(value.detach())
                value = array if array.ndim else array.item()
            except (ValueError, TypeError, RuntimeError) as error:
                raise ValueError(f"{file}: {name} {error}") from error
        if value is not None:
            values[name] = value
    return values


def _array_of(tensor: Any) -> np.ndarray:
    """A dense tensor as an array; half precisions that numpy does not know as float32."""
    if str(tensor.layout) != "torch.strided":
        raise ValueError(f"is a sparse tensor ({tensor.layout}): store it dense")
    if tensor.is_meta:
        raise ValueError("is a meta tensor, which holds no values")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"claims the shape {tuple(tensor.shape)} and holds less: store a copy")
    if tensor.is_floating_point() and str(tensor.dtype) not in _TORCH_FLOATS:
        tensor = tensor.float()
    array: np.ndarray = tensor.numpy()
    return array


READERS = {".safetensors": _read_safetensors, ".npz": _read_npz, ".pt": _read_pt}
