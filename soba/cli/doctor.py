"""`soba doctor`: what is installed, what is found, what a data folder lacks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

import soba
from soba.cli._common import counted, out, shown
from soba.datasets import GROUPS, check
from soba.encode.onnx import OnnxEncoder

# What each extra adds, by distribution name.
_PARTS = {
    "core": ("numpy", "array-api-compat", "safetensors"),
    "cli": ("typer", "rich", "pillow", "onnxruntime"),
    "demo": ("qtawesome", "matplotlib"),
    "torch": ("torch", "open_clip_torch"),
    "hf": ("transformers", "sentencepiece"),
    "bridges": ("supervision", "cleanlab", "datasets"),
    "sources": ("pyarrow", "fsspec"),
    "serve": ("psycopg",),
}


def doctor_(
    data: Annotated[
        Path | None,
        typer.Option(help="A folder of data sets as CoOp and TDA lay them out: what does it lack?"),
    ] = None,
) -> None:
    """Say what is installed, which device and weights there are, and what a data folder lacks."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("[bold]soba[/]", f"{soba.__version__}, Python {platform.python_version()}")
    for extra, names in _PARTS.items():
        versions = [f"{name} {_version(name) or '[red]missing[/]'}" for name in names]
        lacks = any(_version(name) is None for name in names)
        install = f"pip install 'soba-tta[{extra}]'"
        hint = f"  [dim]{escape(install)}[/]" if lacks and extra != "core" else ""
        table.add_row(f"[bold]{extra}[/]", ", ".join(versions) + hint)
    table.add_row("[bold]device[/]", _device())
    table.add_row("[bold]tiny CLIP[/]", _tiny())
    table.add_row("[bold]open_clip weights[/]", escape(_weights()))
    out.print(table)
    if data is None:
        return
    if not data.is_dir():
        raise ValueError(f"{data}: not a folder")
    failed = 0
    for group, names in GROUPS.items():
        out.print(f"\n[bold]{group}[/]")
        for name in names:
            problems = check(name, data)
            failed += bool(problems)
            out.print(f"  {name}: " + ("[green]as it should be[/]" if not problems else ""))
            for problem in problems:
                out.print(f"    [yellow]{shown(problem)}[/]", highlight=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device() -> str:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = f"CPU, {allowed} cores"
    if importlib.util.find_spec("torch") is None:
        return cores
    try:
        import torch
    except Exception as error:  # what is broken is what the doctor is asked about
        return f"{cores}; [red]torch cannot be imported: {escape(str(error))}[/]"
    if torch.cuda.is_available():
        return f"CUDA, {torch.cuda.get_device_name()}; {cores}"
    return f"MPS; {cores}" if torch.backends.mps.is_available() else cores


def _tiny() -> str:
    try:
        encoder = OnnxEncoder.tiny()
    except (OSError, ValueError, ImportError) as error:
        return f"[red]{escape(str(error))}[/]"
    return (
        f"{encoder.width} dimensions, logit scale {encoder.logit_scale:.1f}, {encoder.fingerprint}"
    )


def _weights() -> str:
    """Weight files that open_clip and CLIP have left in their caches."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    folders = [home / "hub", Path.home() / ".cache" / "clip"]
    files = [
        file
        for folder in folders
        if folder.is_dir()
        for pattern in ("**/*.safetensors", "**/*.bin", "**/*.pt")
        for file in folder.glob(pattern)
    ]
    if not files:
        return "none found; --pretrained openai fetches them, or name a file"
    names = sorted({_model_of(file) for file in files})
    more = ", ..." if len(names) > 8 else ""
    return f"{counted(len(files), 'file')}: {', '.join(names[:8])}{more}"


def _model_of(file: Path) -> str:
    for part in file.parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return file.stem
