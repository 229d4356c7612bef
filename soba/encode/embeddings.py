"""Features that are there already: rows of a .npy file, and the keys that a table beside it has.

Two layouts are known: clip-retrieval's, img_emb/img_emb_0.npy with metadata/metadata_0.parquet, and
features.npy with features.parquet or features.csv in the same folder.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from soba.encode._parquet import KEY_COLUMNS, open_parquet
from soba.encode.files import open_file
from soba.encode.image_files import some

_ROWS = 8192
_CLIP_RETRIEVAL = re.compile(r"(?:(.*)/)?img_emb/img_emb_(\d+)\.npy")


class _Header(NamedTuple):
    shape: tuple[int, int]
    dtype: np.dtype


def tables_beside(path: str) -> list[str]:
    """Where the table of a .npy file may be, best first.

    Examples
    --------
    >>> tables_beside("a/img_emb/img_emb_3.npy")[0]
    'a/metadata/metadata_3.parquet'
    >>> tables_beside("a/features.npy")
    ['a/features.parquet', 'a/features.csv']
    """
    stem = path.removesuffix(".npy")
    tables = [f"{stem}.parquet", f"{stem}.csv"]
    if match := _CLIP_RETRIEVAL.fullmatch(path):
        root = "" if match[1] is None else f"{match[1]}/"
        tables.insert(0, f"{root}metadata/metadata_{match[2]}.parquet")
    return tables


def count_embeddings(path: str) -> int:
    """The number of rows, which stands at the beginning of the file."""
    with open_file(path) as file:
        return _header(path, file).shape[0]


def embedding_blocks(
    path: str, table: str | None = None, *, rows: int = _ROWS
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Keys and (n, d) float32 unit rows, in the order of the file.

    A row that has no direction, zeros or numbers that are not finite, comes as NaN. Without a
    table rows are called by the file and their number: "features.npy/17".
    """
    with open_file(path) as file:
        (total, dim), dtype = _header(path, file)
        keys = _numbered(path, total) if table is None else _keys(table)
        for start in range(0, total, rows):
            count = min(rows, total - start)
            content = file.read(count * dim * dtype.itemsize)
            if len(content) < count * dim * dtype.itemsize:
                raise ValueError(f"{path}: truncated, {total} rows were written")
            block = np.frombuffer(content, dtype).reshape(count, dim)
            names = list(islice(keys, count))
            if len(names) < count:
                raise ValueError(f"{table}: fewer rows than {path}, which has {total}")
            yield names, _unit(block)
        if next(keys, None) is not None:
            raise ValueError(f"{table}: more rows than {path}, which has {total}")


def _header(path: str, file: BinaryIO) -> _Header:
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
    except ValueError as error:
        raise ValueError(f"{path}: not a readable .npy file ({error})") from error
    if len(shape) != 2 or not shape[1] or dtype.kind != "f" or is_fortran:
        raise ValueError(f"{path}: {shape} of {dtype}, where features are rows of floats, (n, d)")
    return _Header((int(shape[0]), int(shape[1])), dtype)


def _unit(block: np.ndarray) -> np.ndarray:
    wide = block.astype(np.float64)
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(wide, axis=1, keepdims=True)
        wide /= np.where(np.isfinite(lengths) & (lengths > 0), lengths, np.nan)
    unit: np.ndarray = wide.astype(np.float32)
    return unit


def _numbered(path: str, total: int) -> Iterator[str]:
    return (f"{path}/{number}" for number in range(total))


def _keys(table: str) -> Iterator[str]:
    """The cells of the column that names the rows; of one that is empty, the row's number."""
    cells = _csv_cells(table) if table.lower().endswith(".csv") else _parquet_cells(table)
    try:
        for number, cell in enumerate(cells):
            yield f"{table}/{number}" if cell in (None, "") else str(cell)
    except ImportError:
        raise
    except Exception as error:  # pyarrow raises many kinds, all about the file
        raise ValueError(f"{table}: not a readable table of keys ({error})") from error


def _csv_cells(table: str) -> Iterator[str | None]:
    with open_file(table) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        reader = csv.DictReader(lines)
        name = _key_column(list(reader.fieldnames or ()))
        for row in reader:
            yield row[name]


def _parquet_cells(table: str) -> Iterator[object]:
    with open_file(table) as source, open_parquet(source) as file:
        name = _key_column(file.schema_arrow.names)
        for batch in file.iter_batches(_ROWS, columns=[name], use_threads=False):
            yield from batch.column(name).to_pylist()


def _key_column(names: list[str]) -> str:
    for name in KEY_COLUMNS:
        if name in names:
            return name
    raise ValueError(
        f"needs a column {', '.join(KEY_COLUMNS[:-1])} or {KEY_COLUMNS[-1]}, has {some(names)}"
    )
