"""State files of shards, merged: k-way, a file at a time, with one refresh at the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from soba._files import load_checked
from soba.adapt._gathering import Gathering
from soba.adapt.stream import StreamAdapter

Path = str | os.PathLike[str]
S = TypeVar("S", bound=StreamAdapter)

# How a model was opened is a matter of each machine; its fingerprint says which model it was.
_OF_A_MACHINE = {"opened_as"}


def merge_files(cls: type[S], paths: Sequence[Path]) -> S:
    """The adapter that saw all that the adapters of some state files saw, refreshed once.

    As :meth:`StreamAdapter.merge`, in the memory of two states, however many files there are: their
    arrays stay in the files, and of each the samples are fetched that enter. Notes must agree, but
    for how an encoder was opened.

    O(n log n) for n samples in all, and the time to read the files.
    """
    merged, _ = merge_noted_files(cls, paths)
    return merged


def merge_noted_files(cls: type[S], paths: Sequence[Path]) -> tuple[S, dict[str, Any] | None]:
    """The same, and the note of the files: what they say besides, None if nothing."""
    if not paths:
        raise ValueError("no state files to merge")
    merged, note, gathering = None, None, None
    for path in paths:
        arrays, meta = load_checked(path)
        try:
            if merged is None or gathering is None:
                cls._check_meta(meta)
                merged, note = cls(arrays["text_features"], **meta["params"]), meta.get("note")
                merged._check_merges()
                gathering = Gathering(merged._empty_queues(), merged._empty_samples())
            _check_alike(merged, arrays, meta)
            if _shared(meta.get("note")) != _shared(note):
                raise ValueError(f"its note is not that of {paths[0]}")
            gathering.take_in(*merged._stored(arrays, meta))
        except KeyError as error:
            raise ValueError(f"{path}: {error.args[0]} is missing from the state") from error
        except (TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"{path}: {error}") from error
    assert merged is not None and gathering is not None
    merged._take_gathered(gathering)
    return merged, note


def _check_alike(merged: StreamAdapter, arrays: dict[str, np.ndarray], meta: Any) -> None:
    """Raise if a state is not of an adapter that is set up like the first."""
    merged._check_meta(meta)
    if meta["params"] != merged.params:
        raise ValueError(f"cannot be merged into {merged!r}: it is set up differently")
    if not np.array_equal(arrays["text_features"], merged._given_text):
        raise ValueError("cannot be merged: its text features are others")


def _shared(note: Any) -> Any:
    """What the notes of all machines have in common."""
    if not isinstance(note, dict):
        return note
    return {key: value for key, value in note.items() if key not in _OF_A_MACHINE}
