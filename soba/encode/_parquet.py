"""pyarrow's Parquet, imported when it is needed: how files are opened here, and how written."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from soba.encode._imports import no_package

# What names the rows of a table, best first.
KEY_COLUMNS = ("key", "__key__", "image_path", "path", "file_name", "filename", "url", "id", "name")
_LEVEL = 3  # of zstd
_BUFFER = 1 << 20  # bytes of a column that are read at a time


def pyarrow() -> Any:
    """The package with its Parquet part; its absence says what to install."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise no_package("pyarrow", error) from error
    return pyarrow


def open_parquet(file: str | os.PathLike[str] | BinaryIO) -> Any:
    """A Parquet file to read from, page by page, where checksums are verified if it has them."""
    return pyarrow().parquet.ParquetFile(
        file, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
    )


def parquet_writer(
    path: str | os.PathLike[str], schema: Any, *, compressed: tuple[str, ...] = ()
) -> Any:
    """What writes tables of a schema to a file, with a checksum on every page.

    All settings that decide the bytes are fixed. By default all columns are compressed.
    """
    return pyarrow().parquet.ParquetWriter(
        path,
        schema,
        version="2.6",
        data_page_version="1.0",
        compression={name: "zstd" for name in compressed} or "zstd",
        compression_level={name: _LEVEL for name in compressed} or _LEVEL,
        use_dictionary=False,
        write_page_checksum=True,
    )


def valid_text(text: str) -> str:
    """A text that UTF-8 can say; names of files may hold bytes that are no text.

    >>> valid_text("caf\\udce9")
    'caf\\\\udce9'
    """
    return text.encode("utf-8", "backslashreplace").decode()
