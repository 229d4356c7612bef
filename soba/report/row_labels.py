"""Which records make one row of a table, and what the row is called.

A row has one method, on streams or on whole sets, one source of its hyper-parameters and one kind
of prompts. Views may differ
between its data sets, as they do in TDA's protocol; where one data set was run with several kinds
of views, each kind is a row. Records are told apart by full values; labels say them in short.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from soba.bench.paper_settings import OFFICIAL
from soba.bench.protocol import given_prompts, plain, prompt_words, views
from soba.bench.record import Record
from soba.bench.tuning import PAPER, TEST_LABELS
from soba.report.method_looks import title_of


def rows_of(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Label -> the records of a row."""
    records = list(records)
    policies: dict[tuple[str, str], set[str]] = defaultdict(set)
    for record in records:
        policies[record.method, record.dataset].add(_policy(record))
    split = {method for (method, _), seen in policies.items() if len(seen) > 1}
    grouped: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in records:
        method, prompts = record.method, plain(given_prompts(record))
        policy = _policy(record) if method in split else ""
        kind = "set" if record.transductive else "stream"
        grouped[method, kind, policy, prompts, plain(record.tuned_on)].append(record)
    _pair(grouped)
    rows: dict[str, list[Record]] = {}
    used: Counter[str] = Counter()
    for (method, *_, tuned_on), members in grouped.items():
        label = _label(members[0], tuned_on, method in split)
        used[label] += 1
        rows[label if used[label] == 1 else f"{label} #{used[label]}"] = members
    return rows


def _pair(grouped: dict[tuple[str, ...], list[Record]]) -> None:
    """What was searched on one data set for all: that set, whose labels were seen, joins the rest.

    So does a cell of that set that was tuned on its own test labels, since it is the same search.
    """
    for key in [key for key in grouped if key[-1] == TEST_LABELS]:
        alone = False
        for record in grouped[key]:
            protocol = (*key[:-1], record.dataset)
            if protocol in grouped:
                grouped[protocol].append(record)
            else:
                alone = True
        if not alone:
            del grouped[key]


def _label(record: Record, tuned_on: str, views_differ: bool) -> str:
    words = [] if tuned_on == PAPER else [f"tuned on {tuned_on}"]
    if tuned_on == OFFICIAL:
        words = ["official constants"]
    if record.transductive:
        words.insert(0, "transductive")
    if views_differ:
        words.append(views(record))
    if (prompts := given_prompts(record)) is not None:
        words.append(prompt_words(prompts))
    name = title_of(str(record.method))
    return f"{name} ({', '.join(words)})" if words else name


def _policy(record: Record) -> str:
    return plain([record.view_policy, views(record)])
