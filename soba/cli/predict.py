"""`soba predict`: answers to the shards of a run, under one state."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from soba.cli._common import counted, out, progress_bar, shown
from soba.cli._scale import Folder, RayOption, ShardOption, part_of, refuse_both, working
from soba.scale.folder import ShardFolder
from soba.scale.predict import Predicted, Predictor


def predict_(
    folder: Folder,
    state: Annotated[
        Path,
        typer.Option(help="What `soba merge` wrote, or `soba learn`, --transductive or not."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="ANSWERS", help="The folder of the answers.")
    ],
    shard: ShardOption = None,
    top: Annotated[int, typer.Option(min=1, help="Classes per image, with probabilities.")] = 3,
    ray: RayOption = None,
) -> None:
    """Answer the images whose features `soba embed --shard` wrote; learns nothing.

    A Parquet file of answers for each shard: key, id, label, probability, the best candidates,
    plain CLIP's answer beside it, and the error of what could not be read. What is there from an
    earlier run with the same state stays; answers under another state are refused.
    """
    refuse_both(shard, ray)
    run = ShardFolder.open(folder)
    numbers = part_of(run, shard)
    make_worker = partial(Predictor, run, state, output, top)
    results: list[Predicted] = []
    with working(ray) as runner, progress_bar() as progress:
        task = progress.add_task("shards", total=len(numbers))
        for result in runner.spread(make_worker, numbers):
            results.append(result)
            progress.advance(task)
    rows = counted(sum(result.rows for result in results), "image")
    there = sum(result.was_there for result in results)
    before = f", {there} of them from an earlier run" if there else ""
    changed = sum(result.changed for result in results)
    out.print(
        f"{rows} in {counted(len(numbers), 'shard')}{before}; {changed} answered otherwise than by "
        f"zero-shot, in {shown(output)}",
        soft_wrap=True,
        highlight=False,
    )
