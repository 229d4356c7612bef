"""`soba merge`: the states of several workers as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from soba.cli._common import check_folder, counted, err, expectation, out, shown
from soba.cli._scale import working
from soba.scale.learn import shards_seen, state_meta
from soba.scale.merge import merge


def merge_(
    states: Annotated[
        list[Path], typer.Argument(metavar="STATE...", help="What `soba learn --shard` wrote.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="STATE", help="The merged state to write.")
    ],
) -> None:
    """Merge what workers have learned into one state, in whatever order and grouping.

    A sample that several have seen counts once. States of another run, of other classes, prompts
    or another encoder are refused. `soba predict` and `soba classify --state` take the result.
    """
    check_folder(output)
    with working(None):
        adapter = merge(states, output)
    note = state_meta(output).get("note") or {}
    shards = note.get("shards")
    if shards is not None and (without := shards - shards_seen(output)) > 0:
        err.print(
            f"[yellow]no image of {without} of {counted(shards, 'shard')} of the run was learned "
            "from: states are missing, or no image of these shards could be read[/]",
            soft_wrap=True,
            highlight=False,
        )
    out.print(
        f"{counted(adapter.n_seen, 'image')} of {counted(len(states), 'state')} in {shown(output)}",
        soft_wrap=True,
        highlight=False,
    )
    estimate = getattr(adapter, "expected_accuracy", lambda: None)()
    if estimate is not None:
        out.print(expectation(estimate.zero_shot, estimate.adapted), highlight=False)
