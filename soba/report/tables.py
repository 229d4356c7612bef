"""Records -> tables, a method a row: mean and spread over the seeds, the paper's numbers beside.

Rules keep the tables honest. Results with other tuning, prompts or views are rows of their own.
An average is shown only for a row that has every data set, all under one protocol, and it is of
measured or of quoted numbers, never of both. The difference to a quoted number is taken from
measured results whose hyper-parameters were not searched on the test labels, if prompts and images
are those of the literature. The best and the second best are chosen among the same, but for those
with official constants of each data set, which nobody knows to be chosen without its test labels,
and those that saw the whole set at once, which a stream cannot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from soba.adapt.ncm import NCM
from soba.bench.evaluate import streams
from soba.bench.metrics import mean_and_std
from soba.bench.orders import JOINED, ORDERS
from soba.bench.paper import BACKBONES, Quoted, quoted
from soba.bench.paper_settings import OFFICIAL
from soba.bench.protocol import comparable, joined, stream_views, views
from soba.bench.record import Record
from soba.bench.tuning import TEST_LABELS
from soba.datasets.icons import DOMAINS
from soba.registry import card, list_methods
from soba.report.method_looks import title_of
from soba.report.row_labels import rows_of

BENCHMARKS = {
    "ood": "OOD benchmark",
    "cross": "Cross-dataset benchmark",
    "icons": "Icon domains",
    "folder": "Labelled folders",
}
_STREAMS = {"sequence": "domains in sequence", "mixed": "mixed domains"}
_ANY_ORDER = "as stored"  # what records of episodic methods say: no order matters to them


@dataclass(frozen=True)
class Cell:
    """A number of a table.

    `rank` is 1 for the best of its column, 2 for the second, and only `fair` ones have one.
    `comparable` says whether a quoted number would be of the same prompts and images.
    """

    mean: float
    std: float | None = None
    runs: int = 1
    on_test: bool = False
    comparable: bool = True
    fair: bool = True
    rank: int = 0


@dataclass(frozen=True)
class Row:
    """`kind` is "ours", "quoted" or "difference" (ours less quoted)."""

    label: str
    method: str
    kind: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """Everything measured of one benchmark with one model in one order of the stream."""

    benchmark: str
    model: str
    order: str
    datasets: tuple[str, ...]
    averages: tuple[str, ...]
    rows: tuple[Row, ...]
    members: dict[str, list[Record]] = field(repr=False)  # label of a row -> what is behind it

    @property
    def columns(self) -> tuple[str, ...]:
        return self.datasets + self.averages

    @property
    def title(self) -> str:
        name = BENCHMARKS.get(self.benchmark, self.benchmark or "Results")
        stream = f"{self.order} stream"
        if self.joined:
            count = len(self.datasets)
            stream = f"{count} {_STREAMS[self.order]}" if count > 1 else f"one domain, {self.order}"
        return ", ".join(part for part in (name, self.model, stream) if part)

    @property
    def joined(self) -> bool:
        """Whether the data sets are domains of one stream."""
        return self.order in JOINED

    @property
    def runs(self) -> int:
        """Seeds of the fullest cell."""
        return max(cell.runs for row in self.rows for cell in row.cells if cell is not None)

    def is_short(self, row: Row, cell: Cell | None) -> bool:
        """Whether a cell has fewer orders than its method should: a run that is not done."""
        if cell is None or row.kind != "ours":
            return False
        at_once = all(record.transductive for record in self.members[row.label])
        return cell.runs < (1 if at_once else _due(row.method, self.runs))

    @property
    def fair(self) -> dict[str, list[Record]]:
        """Label of a row -> its records that were not tuned on test labels: for pictures."""
        members = {
            label: [record for record in runs if record.tuned_on != TEST_LABELS]
            for label, runs in self.members.items()
        }
        return {label: runs for label, runs in members.items() if runs}

    @property
    def on_test(self) -> bool:
        return any(cell.on_test for row in self.rows for cell in row.cells if cell is not None)


def tables(records: Iterable[Record]) -> list[Table]:
    """One table per (benchmark, model, order); joined streams of other data sets are others."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[str(record.benchmark), str(record.model)].append(record)
    places = list(BENCHMARKS)
    all_tables = []
    for (benchmark, model), members in sorted(
        groups.items(),
        key=lambda item: (places.index(item[0][0]) if item[0][0] in places else 99, item[0]),
    ):
        by_order: dict[tuple[str, tuple[str, ...]], list[Record]] = defaultdict(list)
        for record in members:
            by_order[str(record.order), joined(record)].append(record)
        free = by_order.pop((_ANY_ORDER, ()), []) if len(by_order) > 1 else []
        for order, sets in sorted(
            by_order, key=lambda o: (ORDERS.index(o[0]) if o[0] in ORDERS else 99, o)
        ):
            all_tables.append(_table(benchmark, model, order, by_order[order, sets] + free))
    return all_tables


def _table(benchmark: str, model: str, order: str, records: list[Record]) -> Table:
    grouped = sorted(rows_of(records).items(), key=_place)
    parts = (part for record in records for part in _by_domain(record))
    datasets = _in_order(benchmark, {str(part.dataset) for part in parts})
    printed = _printed(benchmark, model, order, datasets)
    averages = _averages(benchmark, datasets)
    ours = []
    for label, runs in grouped:
        runs_by_set: dict[str, dict[int, Record]] = defaultdict(dict)
        for part in (part for record in runs for part in _by_domain(record)):
            runs_by_set[part.dataset][part.seed] = part
        measured = [
            _cell(runs_by_set[name].values()) if name in runs_by_set else None for name in datasets
        ]
        means = [_average(runs_by_set, columns) for columns in averages.values()]
        ours.append(Row(label, runs[0].method, "ours", (*measured, *means)))
    rows: list[Row] = []
    beside_ours: set[str] = set()  # methods whose quoted numbers stand beside our own
    columns = (*datasets, *averages)
    for row in _ranked(ours):
        rows.append(row)
        if row.method not in printed:
            continue
        beside = _quoted_row(row.method, printed[row.method], columns)
        pairs = zip(row.cells, beside.cells, strict=True)
        gaps = tuple(
            Cell(a.mean - b.mean) if a and b and a.comparable and not a.on_test else None
            for a, b in pairs
        )
        if any(gaps):
            beside_ours.add(row.method)
            rows += [beside, Row("difference", row.method, "difference", gaps)]
    rows += [
        _quoted_row(method, values, columns)
        for method, values in printed.items()
        if method not in beside_ours
    ]
    return Table(benchmark, model, order, datasets, tuple(averages), tuple(rows), dict(grouped))


def _by_domain(record: Record) -> list[Record]:
    """A joined stream as a record per domain; of any other stream, its own."""
    scores = record.accuracy_per_domain or {record.dataset: record.accuracy}
    return [replace(record, dataset=name, accuracy=score) for name, score in scores.items()]


def _cell(records: Iterable[Record]) -> Cell:
    runs = list(records)
    mean, std = mean_and_std([run.accuracy for run in runs])
    on_test = any(run.tuned_on == TEST_LABELS for run in runs)
    same = all(comparable(run) for run in runs)
    fair = not on_test and not any(run.tuned_on == OFFICIAL or run.transductive for run in runs)
    return Cell(mean, std if len(runs) > 1 else None, len(runs), on_test, same, fair)


def _average(runs_by_set: dict[str, dict[int, Record]], datasets: tuple[str, ...]) -> Cell | None:
    """Over data sets, if the row has them all; its spread over seeds that all of them have."""
    if any(name not in runs_by_set for name in datasets):
        return None
    given = {name: {views(record) for record in runs_by_set[name].values()} for name in datasets}
    # One view on ImageNet and 64 on its variants are one protocol, TDA's; no other mixture is.
    if len(set.union(*given.values())) > 1 and any(
        seen != {stream_views(name)} for name, seen in given.items()
    ):
        return None
    parts = [_cell(runs_by_set[name].values()) for name in datasets]
    mean = float(np.mean([part.mean for part in parts]))
    seeds = set.intersection(*(set(runs_by_set[name]) for name in datasets))
    per_seed = [float(np.mean([runs_by_set[name][s].accuracy for name in datasets])) for s in seeds]
    return Cell(
        mean,
        mean_and_std(per_seed)[1] if len(seeds) > 1 else None,
        min(part.runs for part in parts),
        any(part.on_test for part in parts),
        all(part.comparable for part in parts),
        all(part.fair for part in parts),
    )


def _ranked(rows: list[Row]) -> list[Row]:
    """Best and second of each column marked, as they are printed: equal digits, equal rank."""
    marks: list[dict[float, int]] = []
    for column in zip(*(row.cells for row in rows), strict=True):
        fair = {round(cell.mean, 2) for cell in column if cell is not None and cell.fair}
        best = sorted(fair, reverse=True)[:2]
        marks.append({value: place + 1 for place, value in enumerate(best)})
    if len(rows) < 2:
        return rows
    return [
        replace(
            row,
            cells=tuple(
                cell
                if cell is None or not cell.fair
                else replace(cell, rank=ranks.get(round(cell.mean, 2), 0))
                for cell, ranks in zip(row.cells, marks, strict=True)
            ),
        )
        for row in rows
    ]


def _printed(
    benchmark: str, model: str, order: str, datasets: tuple[str, ...]
) -> dict[str, dict[str, Quoted]]:
    """Our method -> data set -> the paper's number; it ran shuffled streams of two backbones.

    Its averages are of all its data sets, so they stay out of a table of fewer.
    """
    if benchmark not in ("ood", "cross") or model not in BACKBONES or order != "shuffled":
        return {}
    quotes: dict[str, dict[str, Quoted]] = {}
    ours = {card(name).paper.printed_name: name for name in list_methods()}
    for row in quoted(backbone=BACKBONES[model]):
        main, baseline = row.table == benchmark, row.table == f"baseline-{benchmark}"
        if main or (baseline and row.method == NCM.card.name):
            quotes.setdefault(ours.get(row.method, row.method), {})[row.dataset] = row
    cells = {row.dataset for row in quoted(table=benchmark) if row.kind == "cell"}
    if set(datasets) != cells:
        quotes = {
            m: {d: q for d, q in values.items() if d in datasets} for m, values in quotes.items()
        }
    return {method: values for method, values in quotes.items() if values}


def _quoted_row(method: str, values: dict[str, Quoted], columns: tuple[str, ...]) -> Row:
    cells = tuple(Cell(values[name].value) if name in values else None for name in columns)
    printed = next(iter(values.values())).method
    return Row(title_of(printed), method, "quoted", cells)


def _in_order(benchmark: str, names: set[str]) -> tuple[str, ...]:
    known = [f"icons-{name}" for name in DOMAINS] + list(DOMAINS)
    if benchmark in ("ood", "cross"):
        known = list(dict.fromkeys(row.dataset for row in quoted(table=benchmark)))
    return tuple(sorted(names, key=lambda n: (known.index(n) if n in known else 99, n)))


def _averages(benchmark: str, datasets: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Name of the average -> its data sets. An OOD average leaves the source out."""
    if len(datasets) < 2:
        return {}
    averages = {"average": datasets}
    source = {"ood": ("imagenet",), "icons": ("source", "icons-source")}.get(benchmark, ())
    shifted = tuple(name for name in datasets if name not in source)
    if len(datasets) > len(shifted) > 1:
        averages["ood-average"] = shifted
    return averages


def _place(row: tuple[str, list[Record]]) -> tuple[int, str]:
    label, runs = row
    known, method = list_methods(), runs[0].method
    return (known.index(method) if method in known else 99, label)


def _due(method: str, orders: int) -> int:
    """How many of the orders a method runs in."""
    return streams(method, orders) if method in list_methods() else orders
