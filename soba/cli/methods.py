"""`soba methods`: what there is."""

from __future__ import annotations

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

import soba
from soba.adapt.base import Adapter
from soba.cli._common import out
from soba.registry import adapter_class, list_tuners

# Behind a method's name, where it is not an official algorithm -> what it is instead.
# One character each, for tables that fill a terminal; daggers mean other things in `soba bench`.
_SIGNS = {"re-implementation from the paper": "#", "ours": "^", "control": "~"}


def sign(provenance: str) -> str:
    """What marks a method of this provenance in a table.

    >>> sign("official algorithm"), sign("re-implementation from the paper")
    ('', '#')
    """
    return "" if provenance == Adapter.provenance else _SIGNS[provenance]


def footnotes(provenances: Iterable[str]) -> list[str]:
    """What the signs mean, of those that are used.

    >>> footnotes(["ours", "official algorithm", "ours"])
    ['^ ours']
    """
    used = set(provenances)
    return [f"{mark} {what}" for what, mark in _SIGNS.items() if what in used]


def methods_() -> None:
    """List the methods, a line each, with what they need and where they come from."""
    table = Table(box=None, pad_edge=False)
    for column in ("name", "what it does", "needs"):
        table.add_column(column)
    provenances = []
    for name in (*soba.list_adapters(), *list_tuners()):
        try:
            cls = adapter_class(name)
        except ImportError as error:
            table.add_row(f"[bold]{name}[/]", "[dim]not installed[/]", escape(str(error)))
            continue
        label = f"[bold]{name}[/]{sign(cls.provenance)}"
        table.add_row(label, (cls.__doc__ or "").strip().splitlines()[0], cls.needs)
        provenances.append(cls.provenance)
    out.print(table)
    for note in footnotes(provenances):
        out.print(note, highlight=False)
