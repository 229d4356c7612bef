"""Where a method comes from is told in every table that lists methods."""

from __future__ import annotations

import re

from rich.console import Console
from run_cli import soba_command
from tiny_clip import openclip  # noqa: F401  it makes open_clip importable

import soba
from soba.cli.demo import _table_of_all
from soba.cli.methods import sign
from soba.datasets.icons import DOMAINS
from soba.registry import adapter_class, list_tuners

EVERY = (*soba.list_adapters(), *list_tuners())


def first_columns(shown):
    return {re.split(r"\s{2,}", line.strip())[0] for line in shown.splitlines()}


def test_methods_that_are_not_official_are_marked():
    shown = soba_command("methods")
    labels = first_columns(shown)
    assert {name + sign(adapter_class(name).provenance) for name in EVERY} <= labels
    assert {"histpt#", "mta-ensemble-mean#", "mta-ensemble-vote#", "tpt"} <= labels
    assert {"# re-implementation from the paper", "^ ours"} <= labels


def test_the_table_of_all_methods_is_marked_too():
    scores = dict.fromkeys((*DOMAINS, "shifted"), 50.0) | {"milliseconds": 234.5}
    rows = [
        scores | {"method": name, "provenance": adapter_class(name).provenance, "used": None}
        for name in ("zero-shot", "histpt", "mta-ensemble-mean", "mta")
    ]
    rows[-1]["used"] = "views only"
    console = Console(width=80)
    with console.capture() as capture:
        console.print(_table_of_all(rows))
    assert {"zero-shot", "histpt#", "mta-ensemble-mean#", "mta*"} <= first_columns(capture.get())
    assert "…" not in capture.get()  # it fits into a plain terminal
