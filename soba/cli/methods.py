"""`soba methods`: what there is."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

import soba
from soba.cli._common import out
from soba.registry import adapter_class, list_tuners


def methods_() -> None:
    """List the methods, a line each, with what they need."""
    table = Table(box=None, pad_edge=False)
    for column in ("name", "what it does", "needs"):
        table.add_column(column)
    for name in (*soba.list_adapters(), *list_tuners()):
        try:
            cls = adapter_class(name)
        except ImportError as error:
            table.add_row(f"[bold]{name}[/]", "[dim]not installed[/]", escape(str(error)))
            continue
        table.add_row(f"[bold]{name}[/]", (cls.__doc__ or "").strip().splitlines()[0], cls.needs)
    out.print(table)
