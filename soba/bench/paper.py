"""The numbers the paper prints in its tables, quoted: none of them was measured here.

Space Rotation with Basis Transformation for Training-free Test-Time Adaptation (ICCV 2025), every
table, in reading order, in paper.csv. Methods and data sets carry the names used elsewhere in
soba ("zero-shot" for the CLIP rows, "ncm" for the row Baseline). Times are in seconds. Rows that
were copied by the authors from other papers used other prompts; see the notes.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

BACKBONES = {"RN50": "RN50", "ViT-B-16": "ViT-B/16"}  # open_clip's name -> the paper's


@dataclass(frozen=True)
class Quoted:
    """One printed number.

    Attributes
    ----------
    table
        "ood", "cross", "baseline-ood", "baseline-cross", "runtime", "datasets" or "capacity".
    setting
        What varies within a method: "capacity=16" in the ablation.
    dataset
        A data set, or "average" and "ood-average".
    kind
        "cell", "average" of the cells of its row, or "difference" between two rows.
    provenance
        "quoted", as result records say it.
    """

    table: str
    backbone: str
    method: str
    setting: str
    dataset: str
    value: float
    unit: str
    kind: str
    provenance: str
    note: str


def quoted(
    *,
    table: str | None = None,
    backbone: str | None = None,
    method: str | None = None,
    dataset: str | None = None,
) -> list[Quoted]:
    """The printed numbers that match, in the order of the paper.

    Examples
    --------
    >>> [row] = quoted(table="ood", backbone="ViT-B/16", method="soba", dataset="imagenet")
    >>> row.value, row.unit, row.provenance
    (70.9, '%', 'quoted')
    """
    rows = _rows()
    for field, value in (
        ("table", table),
        ("backbone", backbone),
        ("method", method),
        ("dataset", dataset),
    ):
        known = sorted({getattr(row, field) for row in _rows()} - {""})
        if value is not None and value not in known:
            raise ValueError(f"the paper has no {field} {value!r}; it has {', '.join(known)}")
        rows = tuple(row for row in rows if value is None or getattr(row, field) == value)
    return list(rows)


@cache
def _rows() -> tuple[Quoted, ...]:
    with resources.files("soba.bench").joinpath("paper.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return tuple(Quoted(value=float(row.pop("value")), **row) for row in rows)
