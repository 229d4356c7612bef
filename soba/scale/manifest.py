"""What a run is about, fixed once: the shards of its input, the encoder, the prompts, the classes.

Whoever comes first writes it, and all others find that they are about the same or are refused. Its
digest names the space of ids: id = shard number << 32 | position in the shard, so that the ids of a
shard are one interval, and nothing depends on how many workers there are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from soba._files import naming, parse_json
from soba.encode.shards import SourceShard

FORMAT = 1
ROW_BITS = 32  # of an id: positions in one shard
MOST_SHARDS = 1 << (63 - ROW_BITS)
_WORDS = ("class_names", "templates")
# What decides the features and the ids; the rest says where they came from.
_DECISIVE = ("shards", "encoder", "dim", "logit_scale", *_WORDS)


@dataclass(frozen=True)
class Manifest:
    """What a run is about.

    Parameters
    ----------
    source, shard_size
        What the shards were listed from, as the person said it.
    shards
        Of the input, in a fixed order.
    encoder, opened_as
        The encoder's fingerprint, and what it can be opened by.
    dim, logit_scale
        Of the encoder.
    class_names, templates
        Of the text features.
    """

    source: str
    shard_size: int
    shards: tuple[SourceShard, ...]
    encoder: str
    opened_as: dict[str, str] | None
    dim: int
    logit_scale: float
    class_names: tuple[str, ...]
    templates: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.shards:
            raise ValueError(f"{self.source}: holds nothing to encode")
        if len(self.shards) > MOST_SHARDS:
            raise ValueError(f"{self.source}: {len(self.shards)} shards, {MOST_SHARDS} at most")

    @cached_property
    def digest(self) -> str:
        """Of all that decides features and ids."""
        value = self.to_json()
        decisive = {name: value[name] for name in ("format", *_DECISIVE)}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def id_space(self) -> str:
        """What the ids of this run are counted in."""
        return f"manifest {self.digest}"

    def part(self, index: int, count: int) -> range:
        """The numbers of the shards that worker `index` of `count` takes."""
        check_part(index, count)
        return range(index, len(self.shards), count)

    def differences(self, other: Manifest) -> list[str]:
        """In what two manifests are not about the same."""
        ours, theirs = self.to_json(), other.to_json()
        words = {"encoder": "the encoder", "shards": "the input", "class_names": "the classes"}
        words |= {"templates": "the prompts"}
        differing = [words.get(name, name) for name in _DECISIVE if ours[name] != theirs[name]]
        return differing

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        value = asdict(self) | {"format": FORMAT}
        value["shards"] = [shard.to_json() for shard in self.shards]
        return value | {name: list(getattr(self, name)) for name in _WORDS}

    @classmethod
    def from_json(cls, value: Any) -> Manifest:
        """What `to_json` said; a file may hold anything."""
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ValueError("not a manifest of this version of soba")
        try:
            content = {name: value[name] for name in cls.__dataclass_fields__}
            for name in _WORDS:
                if not all(isinstance(word, str) for word in content[name]):
                    raise TypeError(f"{name} must be words")
                content[name] = tuple(content[name])
            content["shards"] = tuple(map(SourceShard.from_json, content["shards"]))
            return cls(**content)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a manifest ({type(error).__name__}: {error})") from error


def ids_of(shard: int, positions: np.ndarray) -> np.ndarray:
    """Ids of images by shard and position.

    Examples
    --------
    >>> ids_of(1, np.array([0, 5])).tolist()
    [4294967296, 4294967301]
    """
    positions = np.asarray(positions, np.int64)
    if len(positions) and int(positions.max()) >> ROW_BITS:
        raise ValueError(f"shard {shard} has more than {1 << ROW_BITS} images")
    return np.int64(shard) << np.int64(ROW_BITS) | positions


def parse_part(text: str) -> tuple[int, int]:
    """Which worker of how many, counted from 0 as schedulers count.

    Examples
    --------
    >>> parse_part("0/4"), parse_part("3/4")
    ((0, 4), (3, 4))
    """
    index, slash, count = text.partition("/")
    if not (slash and index.strip().isdecimal() and count.strip().isdecimal()):
        raise ValueError(f"--shard takes i/n, such as 0/4, not {text!r}")
    check_part(int(index), int(count))
    return int(index), int(count)


def check_part(index: int, count: int) -> None:
    """Raise unless there is such a worker."""
    if count < 1:
        raise ValueError(f"a shard is one of 1 at least, not of {count}")
    if not 0 <= index < count:
        raise ValueError(
            f"there is no shard {index}/{count}: they count from 0, 0/{count} to "
            f"{count - 1}/{count}"
        )


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file; one that is damaged raises an error that names the file."""
    try:
        return Manifest.from_json(parse_json(path.read_bytes()))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def claim_manifest(path: Path, manifest: Manifest) -> Manifest:
    """Write the manifest unless one is there; the one that is there must be about the same."""
    text = json.dumps(manifest.to_json(), sort_keys=True, indent=1) + "\n"
    claim(path, lambda temporary: temporary.write_text(text))
    there = read_manifest(path)
    refuse_other(path, there, manifest)
    return there


def refuse_other(path: Path, there: Manifest, manifest: Manifest) -> None:
    """Raise unless two manifests are about the same."""
    if there.digest == manifest.digest:
        return
    what = ", ".join(there.differences(manifest))
    raise ValueError(
        f"{path.parent}: holds another run, {_called(there)}, than this one, {_called(manifest)}; "
        f"they differ in: {what}. Take another folder"
    )


def claim(path: Path, write: Callable[[Path], object]) -> None:
    """Have a file appear whole, as `write` makes it, unless one is there already.

    A hard link cannot replace a file, so that of several who come at once one is first.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with naming(path, temporary):
            write(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _called(manifest: Manifest) -> str:
    return f"{manifest.digest[:8]} of {manifest.source!r} ({len(manifest.shards)} shards)"
