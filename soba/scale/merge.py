"""States of workers -> one state: any grouping and any order give the same."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from soba._files import alone
from soba.adapt.merging import merge_noted_files
from soba.adapt.stream import StreamAdapter
from soba.registry import saved_class
from soba.scale.folder import ShardFolder
from soba.scale.learn import Learned, Worker, check_mergeable, learn, state_meta
from soba.scale.run import Here, Runner

FAN = 8  # states that one task merges

# What is written into the folder of parts: states of workers, merged ones, and halves of either.
_PART = re.compile(r"\.?(state-\d+-of-\d+|merged-\d+-\d+)\.safetensors(\.[0-9a-f]{8}\.tmp)?")


def merge(paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> StreamAdapter:
    """Merge state files into one, refreshed at the end; the adapter that was written.

    States of other runs, encoders, prompts or classes are refused.
    """
    if not paths:
        raise ValueError("no states to merge")
    cls, *_ = (saved_class(state_meta(path), path) for path in paths)
    try:
        check_mergeable(cls.card.name)
    except ValueError as error:
        raise ValueError(f"{paths[0]}: {error}") from error
    adapter, note = merge_noted_files(cast(type[StreamAdapter], cls), paths)
    adapter.save(output, note=note)
    return adapter


def merge_tree(
    paths: Sequence[Path], output: Path, scratch: Path, runner: Runner, *, fan: int = FAN
) -> None:
    """Merge states in groups, then what came of the groups, until there is one: `output`."""
    level = 0
    while True:
        groups = [tuple(paths[start : start + fan]) for start in range(0, len(paths), fan)]
        if len(groups) == 1:
            targets = [output]
        else:
            targets = [scratch / f"merged-{level}-{k:05d}.safetensors" for k in range(len(groups))]
        jobs = list(zip(groups, targets, strict=True))
        paths = list(runner.map(_merge_group, None, jobs))
        if paths == [output]:
            return
        level += 1


def learn_merged(
    folder: ShardFolder,
    method: str,
    output: str | os.PathLike[str],
    *,
    runner: Runner | None = None,
    step: Callable[[int], None] = lambda count: None,
) -> None:
    """Learn from all shards of a run, by as many workers as there are, and merge what they learn.

    What workers have learned lies in a hidden folder beside `output` until it is merged; a run
    that is started again goes on from there. One run at a time makes `output`. `step` counts
    shards.
    """
    target = Path(os.path.realpath(output))
    with alone(target):
        parts = parts_of(target)
        parts.mkdir(exist_ok=True)
        states = _learn_parts(folder, method, parts, runner or Here(), step)
        merge_tree(states, target, parts, runner or Here())
        _remove_parts(parts)


def parts_of(output: Path) -> Path:
    """The folder of what workers have learned, until it is merged into `output`."""
    return output.with_name(f".{output.name}.parts")


def _learn_parts(
    folder: ShardFolder, method: str, parts: Path, runner: Runner, step: Callable[[int], None]
) -> list[Path]:
    """The states of as many workers as there is room for."""
    count = min(runner.slots, len(folder.manifest.shards))
    workers = [Worker(method, index, count) for index in range(count)]
    states = []
    for worker, learned in zip(workers, runner.map(_learn, (folder, parts), workers), strict=True):
        states.append(learned.path)
        step(len(folder.manifest.part(worker.index, worker.count)))
    return states


def _remove_parts(parts: Path) -> None:
    """Remove what this and earlier runs have written there; what else is there stays."""
    for path in list(parts.iterdir()):
        if _PART.fullmatch(path.name):
            path.unlink()
    with contextlib.suppress(OSError):  # it is not empty
        parts.rmdir()


def _learn(shared: tuple[ShardFolder, Path], worker: Worker) -> Learned:
    folder, states = shared
    return learn(folder, worker, states)


def _merge_group(_: None, job: tuple[tuple[Path, ...], Path]) -> Path:
    paths, target = job
    merge(paths, target)
    return target
