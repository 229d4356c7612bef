"""What the commands share: consoles, options, checks."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

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
from soba.bench.paper import BACKBONES
from soba.encode.encoder import TINY, Encoder, load_encoder
from soba.encode.prompts import read_class_names
from soba.registry import adapter_class, list_methods

# What several commands take.
File = Annotated[
    Path, typer.Argument(help="Labelled features: .safetensors, .npz or .pt.", metavar="FILE")
]
Methods = Annotated[str, typer.Option(help="Comma-separated names; `soba methods` lists them.")]
StreamMethods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        help="Comma-separated names; `soba methods` lists them. Default: all that learn from the "
        "stream.",
    ),
]
JsonPath = Annotated[
    Path | None, typer.Option("--json", metavar="OUT", help="Also write all records as JSON.")
]

Model = Annotated[
    str,
    typer.Option(
        help="`tiny` (ours, for icons), an ONNX folder or file, open_clip's: ViT-B-16/openai, or "
        "transformers': hf:openai/clip-vit-base-patch16."
    ),
]
Pretrained = Annotated[
    str | None,
    typer.Option(help="For a --model without: open_clip tag, a file of weights, or `random`."),
]
Classes = Annotated[str | None, typer.Option(help="Class names, comma-separated: cat,dog.")]
Templates = Annotated[
    str | None,
    typer.Option(
        "--templates", help="single, seven, eighty, icon, a data set's name, a file, or 'a {}.'"
    ),
]
Batch = Annotated[int, typer.Option(min=1, help="Images per run of the encoder.")]
Device = Annotated[str, typer.Option(help="Of models in torch: auto, cpu, cuda, mps.")]
Precision = Annotated[str, typer.Option(help="Of models in torch: fp32, autocast, fp16, bf16.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of the encoder.")]

out = Console()
err = Console(stderr=True)


def method_names(methods: str | None) -> list[str]:
    """The methods an option names, checked; without it, those that learn from the stream."""
    if methods is None:
        return list_methods(family="stream")
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise ValueError("--methods is empty; `soba methods` lists what there is")
    for name in names:
        adapter_class(name)
    if len(set(names)) < len(names):
        raise ValueError(f"--methods names a method twice: {methods}")
    return names


def class_names(classes: str | None, file: Path | None) -> tuple[str, ...]:
    """The classes that two options name, of which one must be said."""
    if (classes is None) == (file is None):
        raise ValueError("say which classes there are: --classes cat,dog or --classes-file FILE")
    if file is not None:
        return read_class_names(file)
    names = tuple(name.strip() for name in (classes or "").split(",") if name.strip())
    if not names:
        raise ValueError("--classes names no class")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ValueError(f"--classes names a class twice: {', '.join(twice)}")
    return names


def check_folder(path: Path | None) -> None:
    """Find out before the work, not after it, that a result cannot be written."""
    if path is None:
        return
    target = Path(os.path.realpath(path))
    folder = target.parent
    if not folder.is_dir():
        raise ValueError(f"{path}: the folder does not exist")
    if target.is_dir():
        raise ValueError(f"{path}: is a folder")
    if os.path.lexists(target) and not target.is_file():
        raise ValueError(f"{path}: exists, and is not a file that can be replaced")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{path}: the folder cannot be written to")


def shown(text: object) -> str:
    """Any text as the console can print it: no markup, no half characters of odd file names."""
    return escape(str(text).encode("utf-8", "replace").decode())


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "image"), counted(2, "image"), counted(0, "class")
    ('1 image', '2 images', '0 classes')
    """
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def per_second(count: float, seconds: float) -> str:
    """A speed in as many digits as matter: slow encoders are not at rest.

    >>> per_second(1234, 10), per_second(33, 10), per_second(21, 50), per_second(3, 0)
    ('123', '3.3', '0.42', '?')
    """
    if seconds <= 0:
        return "?"
    speed = count / seconds
    return f"{speed:.0f}" if speed >= 9.95 else f"{speed:.2g}"


def expectation(zero_shot: float, adapted: float) -> str:
    """What shares of right answers an adapter expects, in a line.

    >>> expectation(0.708, 0.86)
    'CLIP alone is expected to be right on 71%, adapted on 86% (estimated without labels)'
    """
    return (
        f"CLIP alone is expected to be right on {zero_shot:.0%}, adapted on {adapted:.0%} "
        "(estimated without labels)"
    )


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=err, transient=True)


class _Speed(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{per_second(task.speed, 1)}/s", style="cyan")


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


def say_broken(broken: dict[str, str], most: int = 10, listed_in: Path | None = None) -> None:
    """Name the images that could not be read, or the first of them and the file that names all."""
    what = "was" if len(broken) == 1 else "were"
    err.print(f"[yellow]{counted(len(broken), 'image')} could not be read and {what} left out:[/]")
    for key, why in list(broken.items())[:most]:
        err.print(f"  {shown(key)}: {shown(why)}", soft_wrap=True, highlight=False)
    if len(broken) > most:
        rest = "" if listed_in is None else f"; all are in {shown(listed_in)}"
        err.print(f"  ... and {len(broken) - most} more{rest}", soft_wrap=True, highlight=False)


class StopRequest(threading.Event):
    """Set when a person or the system asks the run to end."""

    exit_code = 128 + signal.SIGINT  # what shells expect of a run that a signal ended


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """An event that Ctrl-C or SIGTERM sets, so that the work ends between two batches.

    A second signal ends the run at once. Leave with `exit_code`: 130 for Ctrl-C, 143 for SIGTERM.
    """
    request = StopRequest()

    def stop(number: int, _: object) -> None:
        at_once = request.is_set()
        request.exit_code = 128 + number
        request.set()
        if at_once:
            raise SystemExit(request.exit_code)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_json(
    path: Path | None, records: list[dict[str, Any]], summary: list[dict[str, Any]]
) -> None:
    if path is None:
        return
    content = json.dumps({"records": records, "summary": summary}, indent=2)
    with replacing(path) as temporary:
        temporary.write_text(content + "\n")
    out.print(f"{counted(len(records), 'record')} in {shown(path)}", soft_wrap=True)


def positive_number(text: str, option: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError(f"{option} takes a positive whole number or a word, not {text!r}")
    return value
