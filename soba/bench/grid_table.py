"""Records of a grid -> the numbers of its table; ours and the paper's side by side, never mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from soba.bench.evaluate import Record
from soba.bench.paper import quoted
from soba.bench.tuning import TEST_LABELS

BACKBONES = {"RN50": "RN50", "ViT-B-16": "ViT-B/16"}  # open_clip's name -> the paper's
SOURCES = ("imagenet", "icons-source")  # what the OOD average leaves out
_QUOTED_NAMES = {"mta-ensemble-vote": "mta+ensemble"}


@dataclass(frozen=True)
class Cell:
    """A method on a data set: top-1 in percent over several orders."""

    mean: float
    std: float | None  # of one order there is none
    leaked: bool  # tuned on the labels that are scored


def cells(records: Sequence[Record]) -> dict[tuple[str, str], Cell]:
    """(data set, method) -> its cell; the domains of a joined stream count as data sets."""
    scores: dict[tuple[str, str], list[float]] = {}
    leaked: set[tuple[str, str]] = set()
    for record in records:
        parts = record.get("accuracy_per_domain") or {record["dataset"]: record["accuracy"]}
        for dataset, score in parts.items():
            key = dataset, record["method"]
            scores.setdefault(key, []).append(score)
            if record["tuned_on"] == TEST_LABELS:
                leaked.add(key)
    return {
        key: Cell(
            float(np.mean(runs)),
            float(np.std(runs, ddof=1)) if len(runs) > 1 else None,
            key in leaked,
        )
        for key, runs in scores.items()
    }


def averages(
    found: dict[tuple[str, str], Cell], datasets: Sequence[str], method: str, *, ood: bool
) -> dict[str, float]:
    """The mean over all sets and, as the paper has it, over the shifted ones alone.

    An average over a part of the sets would not compare: where one is missing there is none.
    """
    groups = {"average": list(datasets)}
    if ood:
        groups["ood-average"] = [name for name in datasets if name not in SOURCES]
    return {
        label: float(np.mean([found[name, method].mean for name in group]))
        for label, group in groups.items()
        if group and all((name, method) in found for name in group)
    }


def quoted_cells(benchmark: str, model: str) -> dict[tuple[str, str], float]:
    """(data set or average, method) -> what the paper prints; empty where it prints nothing.

    >>> quoted_cells("ood", "ViT-B-16")["ood-average", "soba"]
    65.06
    >>> quoted_cells("icons", "tiny")
    {}
    """
    if benchmark not in ("ood", "cross") or model not in BACKBONES:
        return {}
    rows = quoted(table=benchmark, backbone=BACKBONES[model])
    rows += [
        row
        for row in quoted(table=f"baseline-{benchmark}", method="ncm")
        if row.backbone == BACKBONES[model]
    ]
    ours = {theirs: name for name, theirs in _QUOTED_NAMES.items()}
    return {
        (row.dataset, ours.get(row.method, row.method)): row.value
        for row in rows
        if row.unit == "%" and row.kind in ("cell", "average")
    }
