"""The cells of a benchmark, spread over workers: each opens its model once, for all its cells."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from soba.bench.cells import Cell, run_cell
from soba.bench.loading import Step
from soba.bench.places import Places
from soba.bench.record import Record
from soba.scale.run import Runner


class _Made(NamedTuple):
    cell: Cell
    record: Record
    broken: dict[tuple[str, str], str]


class _CellWorker:
    def __init__(self, places: Places) -> None:
        self._places = places

    def __call__(self, cell: Cell) -> _Made:
        return _Made(cell, run_cell(cell, self._places), dict(self._places.broken))


def records_by(
    runner: Runner, cells: list[Cell], places: Places, step: Step
) -> Iterator[tuple[Cell, Record]]:
    """The records of cells as they are made: what `make_records` is for `soba.bench.run.run`.

    Features that several cells need are made by the first; the others wait for the file. The
    results folder is one that all workers reach.
    """
    for done in runner.spread(partial(_CellWorker, places), cells):
        places.broken.update(done.broken)
        yield done.cell, done.record
