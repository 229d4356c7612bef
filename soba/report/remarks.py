"""Where a table's numbers are not what they seem: other settings than the paper's, gaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from soba.bench.paper_settings import OFFICIAL
from soba.bench.protocol import given_prompts, lacking, other_protocol, plain
from soba.bench.tuning import PAPER
from soba.report.tables import Table


def remarks(table: Table) -> list[str]:
    """Sentences to stand below a table."""
    return [
        *_other_settings(table),
        *_other_hyper_parameters(table),
        *_official_constants(table),
        *_whole_sets(table),
        *_other_data(table),
        *_no_average(table),
    ]


def _other_settings(table: Table) -> list[str]:
    """Where a difference is shown, though the paper had other views or prompts."""
    sets_by_protocol: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for place, row in enumerate(table.rows):
        if row.kind != "difference":
            continue
        label = table.rows[place - 2].label  # ours, then the quoted row, then the difference
        compared = {name for name, gap in zip(table.columns, row.cells, strict=True) if gap}
        for record in table.members[label]:
            words = other_protocol(record) if record.dataset in compared else None
            if words and record.dataset not in sets_by_protocol[words][label]:
                sets_by_protocol[words][label].append(record.dataset)
    lines = []
    for (ours, theirs), labels in sets_by_protocol.items():
        by_sets: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for label, names in labels.items():
            by_sets[_ordered(table, names)].append(label)
        for sets, row_labels in by_sets.items():
            where = "" if sets == table.datasets else f" on {', '.join(sets)}"
            lines.append(
                f"Not the paper's setting: {', '.join(row_labels)}{where} "
                f"(ours: {ours}; the paper: {theirs})."
            )
    return lines


def _other_hyper_parameters(table: Table) -> list[str]:
    """What was given by hand; what was searched is said by the row's label."""
    lines = []
    for label, records in table.members.items():
        pairs_by_name: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
        sets = set()
        for record in records:
            given = record.tuned_on in (PAPER, OFFICIAL)
            for name, (ours, theirs) in (record.unlike_the_paper or {}).items():
                if given or name != "alpha":
                    pairs_by_name[name].append((ours, theirs))
                    sets.add(record.dataset)
        if not pairs_by_name:
            continue
        words = [
            f"{name} {_values(ours for ours, _ in pairs)}, the paper's "
            f"{_values(theirs for _, theirs in pairs)}"
            for name, pairs in pairs_by_name.items()
        ]
        everywhere = sets == {record.dataset for record in records}
        where = "" if everywhere else f" on {', '.join(_ordered(table, sets))}"
        lines.append(
            f"Other hyper-parameters than the paper's: {label}{where} ({'; '.join(words)})."
        )
    return lines


def _official_constants(table: Table) -> list[str]:
    """Constants that were made for each data set are no fair game."""
    return [
        f"{label}: {OFFICIAL}. It takes no part in best and second."
        for label, records in table.members.items()
        if records[0].tuned_on == OFFICIAL
    ]


def _whole_sets(table: Table) -> list[str]:
    """Who sees all images before the first answer does not race with streams."""
    labels = [label for label, records in table.members.items() if records[0].transductive]
    if not labels:
        return []
    takes = "takes" if len(labels) == 1 else "take"
    return [
        f"Transductive, the whole set seen before the first answer: {', '.join(labels)}; "
        f"{takes} no part in best and second."
    ]


def _other_data(table: Table) -> list[str]:
    """Where no difference is taken, and data sets that are not whole."""
    quoted = any(row.kind == "quoted" for row in table.rows)
    measured = [record for records in table.members.values() for record in records]
    lacks = {record.dataset: lacking(record) for record in measured if lacking(record)}
    lines = []
    if lacks:
        listed = ", ".join(f"{name} ({what})" for name, what in lacks.items())
        lines.append(f"Not the test sets of the literature: {listed}.")
    if quoted and (lacks or any(given_prompts(record) is not None for record in measured)):
        lines.append("No difference is taken where prompts were given or images differ.")
    return lines


def _no_average(table: Table) -> list[str]:
    lines = []
    ours = [row for row in table.rows if row.kind == "ours"]
    count = len(table.datasets)
    lack = [row for row in ours if None in row.cells[:count]]
    mixed = [row for row in ours if row not in lack and None in row.cells[count:]]
    if table.averages and lack:
        lines.append("A row that lacks a data set has no average.")
    if mixed:
        lines.append("A row with other views on some data sets has no average over them.")
    return lines


def _values(values: Iterable[Any]) -> str:
    """
    >>> _values([2.0, 5.0, 2.0]), _values(["growth"]), _values([None, 16])
    ('2 to 5', 'growth', '16 or none')
    """
    known = list(values)
    words = {_word(value) for value in known}
    if len(words) > 1 and all(_is_number(value) for value in known):
        return f"{_word(min(known))} to {_word(max(known))}"
    return " or ".join(sorted(words))


def _word(value: Any) -> str:
    return f"{value:g}" if _is_number(value) else "none" if value is None else plain(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ordered(table: Table, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda n: table.columns.index(n) if n in table.columns else 99))
