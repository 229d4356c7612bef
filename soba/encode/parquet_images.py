"""Images in Parquet files: a column of bytes, or Hugging Face's struct of bytes and path.

Rows are read a few at a time, so that what is held is a page or two of the file, however large it
is. Every row is one picture: a row group that is damaged is as many pictures that cannot be had,
and the next one is read. A picture is called by the file and by the row's path or key, or else by
the row's number: "a.parquet/cat.jpg", "a.parquet/17".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from soba.encode._parquet import KEY_COLUMNS, open_parquet, pyarrow
from soba.encode._reading import may_pass
from soba.encode.files import open_file
from soba.encode.image_files import IMAGE_SUFFIXES, some, why_not_read
from soba.encode.pictures import BytesPicture, NoPicture, Picture

_ROWS = 16  # images that are held at a time
_IMAGE_NAMES = {"image", "img", "picture", "photo", "bytes", "content"}
_IMAGE_NAMES |= {suffix[1:] for suffix in IMAGE_SUFFIXES}


class ImageColumn(NamedTuple):
    """Where the images of a Parquet file are."""

    name: str
    is_struct: bool
    key: str | None  # the column that names them


def parquet_pictures(path: str) -> Iterator[Picture]:
    """The pictures of a Parquet file, one at a time."""
    try:
        with open_file(path) as source, open_parquet(source) as file:
            column = image_column(file.schema_arrow)
            done = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                yield from _group(path, file, column, group, range(done, done + rows))
                done += rows
    except ImportError:
        raise
    except Exception as error:  # pyarrow raises many kinds
        yield NoPicture(path, why_not_read(error), may_pass=may_pass(error))


def count_rows(path: str) -> int | None:
    """The number of rows, which stands at the end of the file; None if that cannot be read."""
    try:
        with open_file(path) as source, open_parquet(source) as file:
            return int(file.metadata.num_rows)
    except ImportError:
        raise
    except Exception:  # whoever reads the images will say why
        return None


def image_column(schema: Any) -> ImageColumn:
    """The column of images: the only one of bytes, or the only one with the name of an image."""
    candidates = {field.name: _is_struct(field.type) for field in schema if _holds(field.type)}
    named = [name for name in candidates if name.lower() in _IMAGE_NAMES]
    chosen = named if len(candidates) > 1 else list(candidates)
    if len(chosen) != 1:
        if not candidates:
            raise ValueError(f"no column of image bytes among {some(schema.names)}")
        raise ValueError(f"which column holds the images? {some(list(candidates))} hold bytes")
    types = pyarrow().types
    keys = {field.name for field in schema if types.is_string(field.type)}
    keys |= {field.name for field in schema if types.is_large_string(field.type)}
    key = next((name for name in KEY_COLUMNS if name in keys), None)
    return ImageColumn(chosen[0], candidates[chosen[0]], key)


def _holds(kind: Any) -> bool:
    """Whether a column of this type may hold image files."""
    types = pyarrow().types
    return _is_struct(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def _is_struct(kind: Any) -> bool:
    """Hugging Face's: a struct of bytes, and of the path that they were read from."""
    types = pyarrow().types
    return types.is_struct(kind) and any(
        field.name == "bytes" and (types.is_binary(field.type) or types.is_large_binary(field.type))
        for field in kind
    )


def _group(path: str, file: Any, column: ImageColumn, group: int, rows: range) -> Iterator[Picture]:
    """One picture for every row of a row group."""
    columns = [column.name] if column.key is None else [column.name, column.key]
    done, is_passing = rows.start, False
    try:
        batches = file.iter_batches(_ROWS, row_groups=[group], columns=columns, use_threads=False)
        for batch in batches:
            for row in batch.to_pylist():
                yield _picture(path, column, done, row)
                done += 1
        problem = "its row group is too short"
    except Exception as error:  # the other row groups may be whole
        problem = f"its row group cannot be read ({why_not_read(error)})"
        is_passing = may_pass(error)
    for row in range(done, rows.stop):
        yield NoPicture(f"{path}/{row}", problem, may_pass=is_passing)


def _picture(path: str, column: ImageColumn, number: int, row: dict[str, Any]) -> Picture:
    content, key = row[column.name], row.get(column.key or "")
    if column.is_struct and content is not None:
        key = content.get("path") or key
        content = content["bytes"]
    name = f"{path}/{number if key in (None, '') else key}"
    return NoPicture(name, "no image in this row") if not content else BytesPicture(name, content)
