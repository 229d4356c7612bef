"""Cells -> records in a folder: what is there stays, what is missing is made.

A run can be killed at any moment: the next one makes the cells that have no record, and ends with
the records of an undisturbed one, but for the seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from soba._files import alone
from soba.bench.cells import STREAM_WORK, Cell, run_cell, search_file, search_work
from soba.bench.loading import Step, no_step
from soba.bench.places import Places
from soba.bench.record import Record, read_record, write_record

MakeRecords = Callable[[list[Cell], Places, Step], Iterator[tuple[Cell, Record]]]


def record_file(cell: Cell, places: Places) -> Path:
    """Where the record of a cell is, or will be."""
    return places.results / "records" / cell.file_name


def missing(cells: Iterable[Cell], places: Places) -> list[Cell]:
    """The cells without a record, or with one that was made while other images were torn."""

    def is_done(cell: Cell) -> bool:
        path = record_file(cell, places)
        return path.exists() and read_record(path).identity == cell.identity(places)

    return [cell for cell in cells if not is_done(cell)]


def work(cells: Iterable[Cell], places: Places) -> int:
    """What `step` counts up to while `run` makes what is missing of the cells."""
    total, files = 0, {}  # files that several cells share -> the work they are
    for cell in missing(cells, places):
        total += STREAM_WORK
        for name, split, file in cell.features:
            if not places.loader.is_made(name, split, cell.views):
                files[file] = len(places.loader.open(name, split)) * cell.views
        search = search_file(cell, places)
        if search is not None and not (places.results / "tuning" / search).exists():
            files[search] = search_work(cell)
    return total + sum(files.values())


def one_by_one(cells: list[Cell], places: Places, step: Step) -> Iterator[tuple[Cell, Record]]:
    """The records of cells, made in this process."""
    return ((cell, run_cell(cell, places, step)) for cell in cells)


def run(
    cells: list[Cell],
    places: Places,
    step: Step = no_step,
    make_records: MakeRecords = one_by_one,
) -> list[Record]:
    """Make the records that are missing, and return those of all cells.

    `make_records` decides where, and in which order; they are written here, as they come.
    """
    places.make()
    with alone(places.results):
        for cell, record in make_records(missing(cells, places), places, step):
            write_record(record_file(cell, places), record)
            step(f"{cell.method} on {cell.dataset}", STREAM_WORK)
    return [read_record(record_file(cell, places)) for cell in cells]
