"""What the commands share: consoles, options, checks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from soba._files import replacing
from soba.bench.evaluate import Record
from soba.bench.paper import BACKBONES
from soba.encode.encoder import Encoder
from soba.encode.load import TINY, load_encoder
from soba.registry import adapter_class

# What several commands take.
File = Annotated[
    Path, typer.Argument(help="Labelled features: .safetensors, .npz or .pt.", metavar="FILE")
]
Methods = Annotated[str, typer.Option(help="Comma-separated names; `soba methods` lists them.")]
JsonPath = Annotated[
    Path | None, typer.Option("--json", metavar="OUT", help="Also write all records as JSON.")
]

Model = Annotated[
    str,
    typer.Option(
        help="`tiny` (ours, for icons), an ONNX folder or file, or an open_clip name: ViT-B-16."
    ),
]
Pretrained = Annotated[
    str | None, typer.Option(help="open_clip tag (openai), a file of weights, or `random`.")
]
Templates = Annotated[
    str | None,
    typer.Option(
        "--templates", help="single, seven, eighty, icon, a data set's name, a file, or 'a {}.'"
    ),
]
Batch = Annotated[int, typer.Option(min=1, help="Images per run of the encoder.")]
Device = Annotated[str, typer.Option(help="Of open_clip models: auto, cpu, cuda, mps.")]
Precision = Annotated[str, typer.Option(help="Of open_clip models: fp32, autocast, fp16, bf16.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of the encoder.")]

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
    if path is None:
        return
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ValueError(f"{path}: the folder does not exist")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{path}: the folder cannot be written to")


def shown(text: object) -> str:
    """Any text as the console can print it: no markup, no half characters of odd file names."""
    return escape(str(text).encode("utf-8", "replace").decode())


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=err, transient=True)


class _Speed(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.0f}/s", style="cyan")


def speed_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Speed())
    return Progress(*columns, TimeRemainingColumn(), console=err, transient=True)


def weights_of(model: str | None, pretrained: str | None) -> str | None:
    """What `--pretrained` stands for: OpenAI's weights for the paper's models, unless others."""
    return "openai" if model in BACKBONES and pretrained is None else pretrained


def open_encoder(
    model: str, pretrained: str | None, device: str, precision: str, threads: int | None
) -> Encoder:
    """The encoder that the options name; says so where it is only the tiny one."""
    encoder = load_encoder(model, pretrained, device=device, precision=precision, threads=threads)
    if encoder.name == TINY:
        err.print(
            "[dim]encoder: the tiny CLIP, which knows icons only; for photos say "
            "--model ViT-B-16 --pretrained openai[/]"
        )
    return encoder


def say_broken(broken: dict[str, str], most: int = 10) -> None:
    """Name the images that could not be read."""
    err.print(f"[yellow]{len(broken)} images could not be read and were left out:[/]")
    for key, why in list(broken.items())[:most]:
        err.print(f"  {shown(key)}: {shown(why)}", soft_wrap=True, highlight=False)
    if len(broken) > most:
        err.print(f"  ... and {len(broken) - most} more")


def write_json(path: Path | None, records: list[Record], summary: list[Record]) -> None:
    if path is None:
        return
    content = json.dumps({"records": records, "summary": summary}, indent=2)
    with replacing(path) as temporary:
        temporary.write_text(content + "\n")
    out.print(f"{len(records)} records in {shown(path)}", soft_wrap=True)


def positive_number(text: str, option: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError(f"{option} takes a positive whole number or a word, not {text!r}")
    return value
