"""What a benchmark left behind: records, ablations, costs; damaged files are named, never used."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soba.bench import ablate, efficiency
from soba.bench.evaluate import Record
from soba.bench.tuning import PAPER


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
    found = _read_file(path) if path.is_file() else _read_folder(path)
    if not (found.records or found.ablations or found.costs):
        first = f" ({found.problems[0]})" if found.problems else ""
        raise ValueError(f"{path}: holds no records{first}")
    return found


def _read_file(path: Path) -> Results:
    try:
        content = json.loads(path.read_bytes())
        if isinstance(content, dict) and "costs" in content:
            return Results([], {}, [efficiency.costs_of(content)], [])
    except ValueError as error:
        raise ValueError(f"{path}: {_reason(error)}") from error
    if not isinstance(content, dict) or not isinstance(content.get("records"), list):
        raise ValueError(f"{path}: not a file of records: it has no list named records")
    records: list[Record] = []
    problems: list[str] = []
    for number, record in enumerate(content["records"]):
        try:
            records.append(_checked(record))
        except ValueError as error:
            problems.append(f"{path.name}, record {number}: {error}")
    return Results(_without_twins(records, problems), {}, [], problems)


def _read_folder(path: Path) -> Results:
    records: list[Record] = []
    ablations: dict[str, list[ablate.Row]] = {}
    costs: list[efficiency.Measured] = []
    problems: list[str] = []
    for file in sorted((path / "records").rglob("*.json")):
        try:
            records.append(_checked(json.loads(file.read_bytes())))
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
            costs.append(efficiency.costs_of(json.loads(file.read_bytes())))
        except (ValueError, OSError) as error:
            problems.append(f"{file.name}: {_reason(error)}")
    return Results(_without_twins(records, problems), ablations, costs, problems)


def _checked(record: Any) -> Record:
    """A record with all that tables need, defaults filled in."""
    if not isinstance(record, dict):
        raise ValueError("not a record: not a JSON object")
    for key in ("method", "dataset"):
        if not isinstance(record.get(key), str):
            raise ValueError(f"not a record: no {key}")
    for key, most in (("accuracy", 100.0), ("calibration_error", 100.0), ("seconds", math.inf)):
        value = record.get(key)
        if not _is_number(value, most):
            raise ValueError(f"not a record: {key} is {value!r}")
    for key in ("accuracy_over_stream", "accuracy_at_coverage"):
        values = record.get(key)
        if values is not None and not (
            isinstance(values, list) and all(isinstance(v, int | float) for v in values)
        ):
            raise ValueError(f"not a record: {key} is not a list of numbers")
    domains = record.get("accuracy_per_domain")
    if domains is not None and not (
        isinstance(domains, dict) and all(_is_number(v, 100.0) for v in domains.values())
    ):
        raise ValueError("not a record: accuracy_per_domain is not an object of percentages")
    for key in ("hyper_parameters", "versions"):
        if not isinstance(record.get(key, {}), dict | None):
            raise ValueError(f"not a record: {key} is not an object")
    for key in ("samples", "encode_seconds"):
        if not isinstance(record.get(key, 0), int | float | None):
            raise ValueError(f"not a record: {key} is {record[key]!r}")
    if not isinstance(record.get("seed"), int):
        raise ValueError(f"not a record: seed is {record.get('seed')!r}")
    defaults = {
        "benchmark": "",
        "model": str(record.get("encoder") or ""),
        "order": "shuffled",
        "tuned_on": PAPER,
        "provenance": "",
        "hyper_parameters": {},
        "versions": {},
    }
    return defaults | {key: value for key, value in record.items() if value is not None}


def _is_number(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


def _without_twins(records: list[Record], problems: list[str]) -> list[Record]:
    """One record per cell and seed: the last one; the others would count twice in a mean."""
    found: dict[tuple[str, ...], Record] = {}
    twins = 0
    for record in records:
        key = tuple(
            plain(record.get(field))
            for field in (
                "benchmark",
                "model",
                "order",
                "dataset",
                "method",
                "seed",
                "tuned_on",
                "view_policy",
                "prompts",
            )
        )
        twins += key in found
        found[key] = record
    if twins:
        problems.append(
            f"{twins} records repeat a cell and seed of another one: of each, the last was used"
        )
    return list(found.values())


def plain(value: Any) -> str:
    """Any value of a record as a key or a word."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not whole JSON, it breaks off or is damaged at character {error.pos}"
    if isinstance(error, UnicodeDecodeError):
        return "not a text file"
    return str(error)
