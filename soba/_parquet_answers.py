"""Answers in a Parquet file, which databases and data frames read without a word."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from soba.encode._parquet import parquet_writer, pyarrow, valid_text

if TYPE_CHECKING:
    from soba.answers import Answer

_ROWS = 8192  # of a row group


class ParquetAnswers:
    """key, id, label, probability, top, zero_shot, zero_shot_probability and error, row by row.

    `key` is the image's name. Of an image that could not be read all but the error is null.
    """

    def __init__(self, path: Path) -> None:
        self._schema = answer_schema()
        self._writer = parquet_writer(path, self._schema)
        self._rows: list[dict[str, Any]] = []

    def add(self, answer: Answer) -> None:
        row: dict[str, Any] = {"key": valid_text(answer.image), "id": answer.id}
        if answer.error:
            row["error"] = valid_text(answer.error)
        else:
            row |= {
                "label": answer.label,
                "probability": answer.probability,
                "top": [{"label": name, "probability": chance} for name, chance in answer.top],
                "zero_shot": answer.zero_shot,
                "zero_shot_probability": answer.zero_shot_probability,
            }
        self._rows.append(row)
        if len(self._rows) == _ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pyarrow().Table.from_pylist(self._rows, schema=self._schema))
            self._rows.clear()


def answer_schema() -> Any:
    """The columns of answers, wherever they are written."""
    arrow = pyarrow()
    share = arrow.float32()
    candidate = arrow.struct({"label": arrow.string(), "probability": share})
    columns = {
        "key": arrow.string(),
        "id": arrow.int64(),
        "label": arrow.string(),
        "probability": share,
        "top": arrow.list_(candidate),
        "zero_shot": arrow.string(),
        "zero_shot_probability": share,
        "error": arrow.string(),
    }
    return arrow.schema(columns)
