"""`soba learn`: what the shards of a run teach, as a state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from soba.adapt.soba_plus.fit import ROUNDS
from soba.cli._common import check_folder, counted, out, progress_bar, shown
from soba.cli._scale import Folder, RayOption, ShardOption, refuse_both, working
from soba.scale.folder import ShardFolder
from soba.scale.learn import Worker, check_mergeable, check_state, learn
from soba.scale.manifest import parse_part
from soba.scale.merge import learn_merged
from soba.scale.run import Runner
from soba.scale.transduce import em_shards, save_model


def learn_(
    folder: Folder,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="STATE",
            help="The state to write, .safetensors; with --shard, the folder of the states.",
        ),
    ],
    shard: ShardOption = None,
    method: Annotated[
        str, typer.Option(help="`soba+` or another stream method whose states merge.")
    ] = "soba+",
    transductive: Annotated[
        bool,
        typer.Option(
            "--transductive",
            help="Learn from all images at once, in rounds over all shards: not from a stream.",
        ),
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=0, help=f"Of --transductive; default: {ROUNDS}.")
    ] = None,
    ray: RayOption = None,
) -> None:
    """Learn from the features that `soba embed --shard` wrote: no labels, no scores, one pass.

    With --shard each worker writes a state of its own, for `soba merge`. Without it all shards are
    learned from, here or on a cluster, and the state is the merged one. How many workers there
    were changes nothing. `soba predict` and `soba classify` answer with the state.
    """
    refuse_both(shard, ray)
    run = ShardFolder.open(folder)
    if transductive and shard is not None:
        raise ValueError("--transductive needs all shards in every round: say --ray, or no --shard")
    if transductive and method != "soba+":
        raise ValueError(f"{method} does not learn from a set at once; soba+ does")
    if rounds is not None and not transductive:
        raise ValueError("--rounds goes with --transductive: a stream is learned from in one pass")
    check_mergeable(method)
    _refuse_missing(run, shard)
    if shard is not None:
        _learn_part(run, method, shard, output)
        return
    check_folder(output)
    with working(ray) as runner:
        if transductive:
            _learn_at_once(run, output, ROUNDS if rounds is None else rounds, runner)
        else:
            _learn_all(run, method, output, runner)


def _learn_part(run: ShardFolder, method: str, shard: str, output: Path) -> None:
    worker = Worker(method, *parse_part(shard))
    output.mkdir(parents=True, exist_ok=True)
    with working(None), progress_bar() as progress:
        total = len(run.manifest.part(worker.index, worker.count))
        task = progress.add_task("shards", total=total)
        learned = learn(run, worker, output, lambda count: progress.advance(task, count))
    before = ", from an earlier run" if learned.was_there else ""
    _say(f"{counted(learned.n_seen, 'image')} in {shown(learned.path)}{before}")


def _learn_all(run: ShardFolder, method: str, output: Path, runner: Runner) -> None:
    with progress_bar() as progress:
        task = progress.add_task("shards", total=len(run.manifest.shards))
        learn_merged(
            run,
            method,
            output,
            runner=runner,
            step=lambda count: progress.advance(task, count),
        )
    seen = counted(check_state(output, run, method), "image")
    _say(f"{seen} of {counted(len(run.manifest.shards), 'shard')} in {shown(output)}")


def _learn_at_once(run: ShardFolder, output: Path, rounds: int, runner: Runner) -> None:
    with progress_bar() as progress:
        task = progress.add_task("shards, in all rounds", total=None)
        model = em_shards(
            run, rounds=rounds, runner=runner, step=lambda count: progress.advance(task, count)
        )
    save_model(output, model, run)
    _say(f"a model of {counted(len(run.manifest.shards), 'shard')} in {shown(output)}")


def _refuse_missing(run: ShardFolder, shard: str | None) -> None:
    """Said before the work: a state of half of the shards would look like one of all."""
    wanted = range(len(run.manifest.shards))
    if shard is not None:
        wanted = run.manifest.part(*parse_part(shard))
    missing = [number for number in run.missing if number in wanted]
    if missing:
        raise ValueError(
            f"{run.path}: {counted(len(missing), 'shard')} of {len(wanted)} without features, the "
            f"first is {run.feature_file(missing[0]).name}; soba embed makes them"
        )


def _say(text: str) -> None:
    out.print(text, soft_wrap=True, highlight=False)
