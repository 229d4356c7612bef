"""Feature files -> states: what each of several workers has learned from its shards."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from soba._files import parse_json
from soba.adapt.stream import StreamAdapter
from soba.registry import adapter_class, create_adapter, list_methods
from soba.scale.folder import ShardFolder
from soba.scale.manifest import ROW_BITS, check_part


@dataclass(frozen=True)
class Worker:
    """One of several who learn from a run, each from its own shards."""

    method: str
    index: int
    count: int

    def __post_init__(self) -> None:
        check_part(self.index, self.count)
        check_mergeable(self.method)

    def state_file(self, states: Path) -> Path:
        """Where its state is, or will be."""
        return states / f"state-{self.index:05d}-of-{self.count:05d}.safetensors"


@dataclass(frozen=True)
class Learned:
    """What a worker has learned."""

    path: Path
    n_seen: int
    was_there: bool


def check_mergeable(method: str) -> None:
    """Refuse a method whose states do not merge."""
    if not _merges(method):
        able = ", ".join(filter(_merges, list_methods()))
        raise ValueError(f"{method} does not merge what workers have learned; these do: {able}")


def learn(
    folder: ShardFolder,
    worker: Worker,
    states: str | os.PathLike[str],
    step: Callable[[int], None] = lambda count: None,
) -> Learned:
    """Learn from the shards of a worker, without scoring, unless its state is there.

    The state is not refreshed: who merges does that. `step` counts shards.
    """
    target = worker.state_file(Path(states))
    if target.exists():
        seen = check_state(target, folder, worker.method)
        return Learned(target, seen, was_there=True)
    adapter = new_adapter(folder, worker.method)
    for number in folder.manifest.part(worker.index, worker.count):
        for block in folder.blocks(number):
            adapter.learn(block.features, ids=block.ids)
        step(1)
    _place_by_id(adapter)
    adapter.save(target, note=folder.note())
    return Learned(target, adapter.n_seen, was_there=False)


def new_adapter(folder: ShardFolder, method: str) -> StreamAdapter:
    """An adapter for a run that has seen nothing yet."""
    manifest = folder.manifest
    adapter = create_adapter(method, folder.text_features, logit_scale=manifest.logit_scale)
    assert isinstance(adapter, StreamAdapter)
    adapter.id_space = manifest.id_space
    return adapter


def _place_by_id(adapter: StreamAdapter) -> None:
    """Give what is kept its place in the run, which all workers share, instead of the worker's."""
    for sample in adapter._samples.values():
        sample.places[: len(sample)] = sample.ids[: len(sample)]


def state_meta(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a state says of itself; its arrays are left where they are."""
    return _header(path)[0]


def state_digest(path: str | os.PathLike[str]) -> str:
    """The checksum that a state carries."""
    return _header(path)[1]


def _header(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    if os.path.exists(path) and not os.path.isfile(path):
        what = "a folder" if os.path.isdir(path) else "no file"
        raise ValueError(f"{path}: is {what}; name the states themselves")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            entries = file.metadata() or {}
        meta, checksum = parse_json(entries["meta"]), str(entries["sha256"])
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: not a state, or truncated ({error})") from error
    if not isinstance(meta, dict):
        raise ValueError(f"{path}: not a state")
    return meta, checksum


def check_state(path: str | os.PathLike[str], folder: ShardFolder, method: str | None) -> int:
    """Raise unless a state is of this run (and method); how many samples it has seen."""
    meta, wanted = state_meta(path), folder.manifest.id_space
    if meta.get("given_space") != wanted:
        raise ValueError(
            f"{path}: was learned from another run ({meta.get('given_space')}) than {folder.path} "
            f"({wanted}); take another folder"
        )
    if method is not None and meta.get("adapter") != method:
        raise ValueError(f"{path}: was learned by {meta.get('adapter')}, not {method}")
    seen = _seen(path)
    return int((seen[:, 1] - seen[:, 0]).sum())


def shards_seen(path: str | os.PathLike[str]) -> int:
    """How many shards of a run a state has learned any image from."""
    return len(np.unique(_seen(path)[:, 0] >> ROW_BITS))


def _seen(path: str | os.PathLike[str]) -> np.ndarray:
    """(m, 2) the ids a state has learned from, as intervals."""
    with safetensors.safe_open(path, framework="numpy") as file:
        seen: np.ndarray = file.get_tensor("seen")
    return seen


def _merges(method: str) -> bool:
    cls = adapter_class(method)
    return issubclass(cls, StreamAdapter) and cls.keeps_samples and cls.card.needs == {"features"}
