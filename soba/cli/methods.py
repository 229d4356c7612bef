"""`soba methods`: what there is."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from rich.markup import escape
from rich.table import Table

from soba.cli._common import out
from soba.registry import adapter_class, list_methods, provenance_of

# Behind a method's name, where it is not an official algorithm -> what it is instead.
# One character each, for tables that fill a terminal; daggers mean other things in `soba bench`.
_SIGNS = {"re-implementation from the paper": "#", "ours": "^", "control": "~"}
_OFFICIAL, _OTHER = "official algorithm", "?"


def sign(provenance: str) -> str:
    """What marks a method of this provenance in a table.

    Examples
    --------
    >>> sign("official algorithm"), sign("re-implementation from the paper"), sign("not stated")
    ('', '#', '?')
    """
    return "" if provenance == _OFFICIAL else _SIGNS.get(provenance, _OTHER)


def footnotes(provenances: Iterable[str]) -> list[str]:
    """What the signs mean, of those that are used.

    Examples
    --------
    >>> footnotes(["ours", "official algorithm", "not stated", "ours"])
    ['^ ours', '? not stated']
    """
    used = set(provenances) - {_OFFICIAL}
    known = [what for what in _SIGNS if what in used]
    return [f"{sign(what)} {what}" for what in (*known, *sorted(used - _SIGNS.keys()))]


def methods_() -> None:
    """List the methods, a line each, with what they need and where they come from."""
    table = Table(box=None, pad_edge=False)
    for column in ("name", "what it does", "needs"):
        table.add_column(column)
    provenances = []
    for name in list_methods():
        cls = adapter_class(name)
        provenance = provenance_of(cls)
        label = f"[bold]{name}[/]{sign(provenance)}"
        needs = cls.card.needs_in_words
        if "gradients" in cls.card.needs and find_spec("torch") is None:
            needs += " [dim](pip install 'soba-tta\\[torch]')[/]"
        what = (cls.__doc__ or "").strip().partition("\n")[0]
        table.add_row(label, escape(what), needs)
        provenances.append(provenance)
    out.print(table)
    for note in footnotes(provenances):
        out.print(note, highlight=False)
