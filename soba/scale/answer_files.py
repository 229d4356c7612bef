"""Answers of one shard in a Parquet file: a row per image, in the order of the ids.

The columns are those of all answers in Parquet. They are made a block at a time, and not an answer
at a time: a shard has many. The metadata says, under "soba", which run and state they are of.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from soba._files import parse_json, replacing
from soba._parquet_answers import answer_schema
from soba.encode._parquet import open_parquet, parquet_writer, pyarrow
from soba.encode.feature_shards import Broken

_NOTE = b"soba"


class AnswerBlock(NamedTuple):
    """Answers to some images, as numbers."""

    keys: list[str]
    ids: np.ndarray  # (n,)
    top: np.ndarray  # (n, k) classes, best first
    probabilities: np.ndarray  # (n, k)
    zero_shot: np.ndarray  # (n,)
    zero_shot_probabilities: np.ndarray  # (n,)


def write_answer_file(
    path: str | os.PathLike[str],
    blocks: Iterable[AnswerBlock],
    broken: Sequence[Broken],
    names: Sequence[str],
    about: Mapping[str, Any],
) -> None:
    """Write answers to a file that appears when the last one is in it.

    Images that could not be read have rows among the others, with their errors.
    """
    schema = answer_schema()
    with replacing(path) as temporary, parquet_writer(temporary, schema) as writer:
        for table in _tables(blocks, sorted(broken), names):
            writer.write_table(table)
        writer.add_key_value_metadata({_NOTE: json.dumps(dict(about), sort_keys=True)})


def read_answer_file(path: Path) -> tuple[dict[str, Any], int]:
    """What a file says of itself, and how many answers are others than zero-shot's.

    An error names the file.
    """
    changed = 0
    try:
        with open_parquet(path) as file:
            about = parse_json((file.metadata.metadata or {})[_NOTE])
            for batch in file.iter_batches(columns=["label", "zero_shot"]):
                pairs = pyarrow().compute.not_equal(batch.column(0), batch.column(1))
                changed += pyarrow().compute.sum(pairs).as_py() or 0
    except ImportError:
        raise
    except Exception as error:  # pyarrow raises many kinds, all about the file
        raise ValueError(f"{path}: not a readable file of answers ({error})") from error
    if not isinstance(about, dict):
        raise ValueError(f"{path}: not a file of answers")
    return about, changed


def _tables(
    blocks: Iterable[AnswerBlock], broken: Sequence[Broken], names: Sequence[str]
) -> Iterator[Any]:
    """The blocks, each with the images that could not be read and come before its end."""
    arrow, said = pyarrow(), 0
    for block in blocks:
        table, last = _answered(block, names), int(block.ids[-1])
        until = said + sum(each.id < last for each in broken[said:])
        if until > said:
            both = arrow.concat_tables([table, _unanswered(broken[said:until])])
            table, said = both.sort_by("id"), until
        yield table
    if said < len(broken):
        yield _unanswered(broken[said:])


def _answered(block: AnswerBlock, names: Sequence[str]) -> Any:
    arrow = pyarrow()
    words, (count, width) = arrow.array(names, arrow.string()), block.top.shape
    shares = np.asarray(block.probabilities, np.float32)
    candidates = arrow.StructArray.from_arrays(
        [words.take(arrow.array(block.top.reshape(-1))), arrow.array(shares.reshape(-1))],
        ["label", "probability"],
    )
    offsets = arrow.array(np.arange(count + 1, dtype=np.int32) * width)
    columns = [
        arrow.array(block.keys, arrow.string()),
        arrow.array(block.ids),
        words.take(arrow.array(block.top[:, 0])),
        arrow.array(shares[:, 0]),
        arrow.ListArray.from_arrays(offsets, candidates),
        words.take(arrow.array(block.zero_shot)),
        arrow.array(np.asarray(block.zero_shot_probabilities, np.float32)),
        arrow.nulls(count, arrow.string()),
    ]
    return arrow.Table.from_arrays(columns, schema=answer_schema())


def _unanswered(broken: Sequence[Broken]) -> Any:
    arrow, schema = pyarrow(), answer_schema()
    columns: dict[str, Any] = {
        name: arrow.nulls(len(broken), schema.field(name).type) for name in schema.names
    }
    columns["key"] = arrow.array([each.key for each in broken], arrow.string())
    columns["id"] = arrow.array([each.id for each in broken], arrow.int64())
    columns["error"] = arrow.array([each.error for each in broken], arrow.string())
    return arrow.Table.from_pydict(columns, schema=schema)
