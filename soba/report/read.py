"""What a benchmark left behind: records, ablations, costs; damaged files are named, never used.

Runs with other data or settings may have added to one folder. Records that a table could not tell
apart are never averaged: of each data set, and of each cell, the newest whole group of records is
used, and the others are named.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soba._files import parse_json
from soba.bench.protocol import joined, plain
from soba.bench.record import Record
from soba.studies import ablate, efficiency

# What decides a cell, but for the seed, where a record has no identity that says it in one.
_IDENTITY = ("hyper_parameters", "encoder", "templates", "views", "samples", "used")

Key = tuple[str, ...]


@dataclass(frozen=True)
class Results:
    """Records in the order of their file names, and a line about each file that was left out."""

    records: list[Record]
    ablations: dict[str, list[ablate.Row]]
    costs: list[efficiency.Measured]
    problems: list[str]


def read_results(path: Path) -> Results:
    """A folder with `records/*.json`, `ablations/*.csv` and `efficiency*.json`, or one file.

    The file is one of `soba eval --json` or of `soba bench efficiency -o`.
    """
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder")
    results = _read_file(path) if path.is_file() else _read_folder(path)
    if not (results.records or results.ablations or results.costs):
        first = f" ({results.problems[0]})" if results.problems else ""
        raise ValueError(f"{path}: holds no records{first}")
    return results


def _read_file(path: Path) -> Results:
    try:
        content = parse_json(path.read_bytes())
        if isinstance(content, dict) and "costs" in content:
            return Results([], {}, [efficiency.costs_of(content)], [])
    except ValueError as error:
        raise ValueError(f"{path}: {_reason(error)}") from error
    if not isinstance(content, dict) or not isinstance(content.get("records"), list):
        raise ValueError(f"{path}: not a file of records: it has no list named records")
    records: list[Record] = []
    problems: list[str] = []
    for number, entry in enumerate(content["records"]):
        try:
            records.append(Record.from_json(entry))
        except ValueError as error:
            problems.append(f"{path.name}, record {number}: {error}")
    return Results(_newest(records, problems), {}, [], problems)


def _read_folder(path: Path) -> Results:
    records: list[Record] = []
    written: list[int] = []
    ablations: dict[str, list[ablate.Row]] = {}
    costs: list[efficiency.Measured] = []
    problems: list[str] = []
    for file in sorted((path / "records").rglob("*.json")):
        try:
            records.append(Record.from_json(parse_json(file.read_bytes())))
            written.append(file.stat().st_mtime_ns)
        except (ValueError, OSError) as error:
            problems.append(f"{file.relative_to(path)}: {_reason(error)}")
    for file in sorted((path / "ablations").glob("*.csv")):
        try:
            rows = ablate.read_csv(file)
        except (ValueError, OSError) as error:
            problems.append(str(error).removeprefix(f"{path}/"))
            continue
        for row in rows:
            ablations.setdefault(row.ablation, []).append(row)
    for file in sorted(path.glob("efficiency*.json")):
        try:
            costs.append(efficiency.costs_of(parse_json(file.read_bytes())))
        except (ValueError, OSError) as error:
            problems.append(f"{file.name}: {_reason(error)}")
    by_age = [records[i] for i in sorted(range(len(records)), key=written.__getitem__)]
    kept = set(map(id, _newest(by_age, problems)))
    return Results([r for r in records if id(r) in kept], ablations, costs, problems)


def _newest(records: list[Record], problems: list[str]) -> list[Record]:
    """Of records from the oldest to the newest, those that may stand in one table."""

    def column(record: Record) -> Key:
        place = ("benchmark", "model", "order", "dataset")
        return *(plain(getattr(record, field)) for field in place), *joined(record)

    def cell(record: Record) -> Key:
        settings = ("method", "transductive", "tuned_on", "view_policy", "prompts")
        return *column(record), "", *(plain(getattr(record, field)) for field in settings)

    def images(record: Record) -> str:
        return plain(record.samples)

    records, outdated = _of_newest_kind(records, column, images)
    problems += [
        f"{old[0].dataset}: {len(old)} records of {images(old[0])} images, since newer ones "
        f"of the order {new.order} are of {images(new)}"
        for old, new in outdated
    ]
    records, outdated = _of_newest_kind(records, cell, _identity)
    for old, new in outdated:
        unlike = [f for f in (*_IDENTITY, "versions") if getattr(old[0], f) != getattr(new, f)]
        reason = ", ".join(unlike).replace("_", " ") or "settings or data"
        problems.append(
            f"{new.method} on {new.dataset}: {len(old)} records, since newer ones differ "
            f"from them in {reason}"
        )
    newest = {(*cell(record), plain(record.seed)): record for record in records}
    if len(newest) < len(records):
        problems.append(
            f"{len(records) - len(newest)} records repeat a cell and seed of another one: of each, "
            "the newest was used"
        )
    return list(newest.values())


def _of_newest_kind(
    records: list[Record], place: Callable[[Record], Key], kind: Callable[[Record], str]
) -> tuple[list[Record], list[tuple[list[Record], Record]]]:
    """The records of the same kind as the newest of their place, and the others.

    The others come as (all of a place and kind, the newest record of that place).
    """
    newest = {place(record): record for record in records}
    kept: list[Record] = []
    others: dict[tuple[Key, str], list[Record]] = defaultdict(list)
    for record in records:
        where, what = place(record), kind(record)
        (kept if what == kind(newest[where]) else others[where, what]).append(record)
    return kept, [(older, newest[where]) for (where, _), older in others.items()]


def _identity(record: Record) -> str:
    return plain(record.identity or [getattr(record, field) for field in _IDENTITY])


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not whole JSON, it breaks off or is damaged at character {error.pos}"
    if isinstance(error, UnicodeDecodeError):
        return "not a text file"
    return str(error)
