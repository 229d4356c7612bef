"""What the commands share: consoles, options, checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from soba._files import replacing
from soba.bench.evaluate import Record
from soba.registry import adapter_class

# What several commands take.
File = Annotated[
    Path, typer.Argument(help="Labelled features: .safetensors, .npz or .pt.", metavar="FILE")
]
Methods = Annotated[str, typer.Option(help="Comma-separated names; `soba methods` lists them.")]
JsonPath = Annotated[
    Path | None, typer.Option("--json", metavar="OUT", help="Also write all records as JSON.")
]

out = Console()
err = Console(stderr=True)


def method_names(methods: str) -> list[str]:
    """The methods an option names, checked."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise ValueError("--methods is empty; `soba methods` lists what there is")
    for name in names:
        adapter_class(name)
    if len(set(names)) < len(names):
        raise ValueError(f"--methods names a method twice: {methods}")
    return names


def check_folder(path: Path | None) -> None:
    """Find out before the work, not after it, that a result cannot be written."""
    if path is not None and not path.resolve().parent.is_dir():
        raise ValueError(f"{path}: the folder does not exist")


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=err, transient=True)


def write_json(path: Path | None, records: list[Record], summary: list[Record]) -> None:
    if path is None:
        return
    content = json.dumps({"records": records, "summary": summary}, indent=2)
    with replacing(path) as temporary:
        temporary.write_text(content + "\n")
    out.print(f"{len(records)} records in {path}", soft_wrap=True)


def positive_number(text: str, option: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError(f"{option} takes a positive whole number or a word, not {text!r}")
    return value
