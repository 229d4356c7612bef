"""Lists of images in files: a .csv with a column "path", or a .txt with a path on each line."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path

from soba.encode.files import beside, is_remote, open_file, plain_name
from soba.encode.image_files import PathLike, some

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def is_list(path: str) -> bool:
    """Whether a path is that of a list, by its name.

    Examples
    --------
    >>> is_list("test.csv"), is_list("s3://bucket/test.txt"), is_list("test.jpg")
    (True, True, False)
    """
    suffix = os.path.splitext(plain_name(path))[1].lower()
    return suffix in (".csv", ".txt") and (is_remote(path) or not os.path.isdir(path))


def read_list(path: str) -> list[str]:
    """The paths that a list names, relative ones below its folder; "" where a row names none."""
    if plain_name(path).lower().endswith(".csv"):
        _, rows = read_table(path)
        names = [(row["path"] or "").strip() for row in rows]
    else:
        lines = map(str.strip, _text(path).split("\n"))
        names = [line for line in lines if line]
    return [name and beside(path, name) for name in names]


def read_table(table: PathLike) -> tuple[Sequence[str], list[dict[str, str]]]:
    """Columns and rows of a .csv file that has a column "path"."""
    try:
        reader = csv.DictReader(io.StringIO(_text(os.fspath(table)), newline=""))
        columns, rows = reader.fieldnames or [], list(reader)
    except csv.Error as error:
        raise ValueError(f"{table}: not a table ({error})") from error
    if "path" not in columns:
        raise ValueError(f"{table}: needs a column 'path', has {', '.join(columns) or 'none'}")
    return columns, rows


def column(table: PathLike, rows: Sequence[dict[str, str]], name: str) -> list[str]:
    """The cells of a column, of which none may be empty."""
    cells = [(row[name] or "").strip() for row in rows]
    empty = [str(number) for number, cell in enumerate(cells, 1) if not cell]
    if empty:
        raise ValueError(f"{table}: no {name} in rows {some(empty)}")
    return cells


def expand_braces(path: str) -> list[str]:
    """The paths that braces stand for, as WebDataset's users write them; a file is taken as it is.

    Examples
    --------
    >>> expand_braces("train-{008..011}.tar")
    ['train-008.tar', 'train-009.tar', 'train-010.tar', 'train-011.tar']
    >>> expand_braces("{a,b}/{0..1}.tar")
    ['a/0.tar', 'a/1.tar', 'b/0.tar', 'b/1.tar']
    """
    match = _BRACES.search(path)
    if match is None or (not is_remote(path) and os.path.lexists(path)):
        return [path]
    words = _words(match[1])
    if words is None:  # braces that mean nothing are part of the name
        return [path]
    ends = expand_braces(path[match.end() :])
    return [path[: match.start()] + word + end for word in words for end in ends]


def _words(inside: str) -> list[str] | None:
    if numbers := _RANGE.fullmatch(inside):
        first, last = map(int, numbers.groups())
        step = 1 if first <= last else -1
        return [f"{n:0{len(numbers[1])}d}" for n in range(first, last + step, step)]
    return inside.split(",") if "," in inside else None


def _text(path: str) -> str:
    if not is_remote(path) and not Path(path).is_file():
        raise ValueError(f"{path}: not found")
    with open_file(path) as file:
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text") from error
