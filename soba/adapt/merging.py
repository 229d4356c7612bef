"""State files of shards, merged: k-way, a file at a time, with one refresh at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from soba._files import load_checked
from soba._formats import upgraded_state
from soba.adapt._gathering import Gathering
from soba.adapt.stream import StreamAdapter

Path = str | os.PathLike[str]
S = TypeVar("S", bound=StreamAdapter)

# How a model was opened is a matter of each machine; its fingerprint says which model it was.
_OF_A_MACHINE = {"opened_as"}


def merge_files(cls: type[S], paths: Sequence[Path]) -> S:
    """The adapter that saw all that the adapters of some state files saw, refreshed once.

    As `StreamAdapter.merge`, in the memory of two states, however many files there are: their
    arrays stay in the files, and of each the samples are fetched that enter. Notes must agree, but
    for how an encoder was opened.

    O(n log n) for n samples in all, and the time to read the files.

    Examples
    --------
    >>> import tempfile
    >>> from soba import SOBAPlus
    >>> from soba.testing import example_stream
    >>> stream, labels, text = example_stream()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for shard in range(3):
    ...         adapter = SOBAPlus(text, logit_scale=20.0)
    ...         adapter.learn(stream[shard::3], ids=range(shard, 240, 3))
    ...         adapter.save(f"{folder}/{shard}")
    ...     merged = merge_files(SOBAPlus, [f"{folder}/{shard}" for shard in range(3)])
    >>> merged.n_seen, int((merged.predict(stream) == labels).sum())
    (240, 206)
    """
    merged, _ = merge_noted_files(cls, paths)
    return merged


def merge_noted_files(cls: type[S], paths: Sequence[Path]) -> tuple[S, dict[str, Any] | None]:
    """The same, and the note of the files: what they say besides, None if nothing."""
    if not paths:
        raise ValueError("no state files to merge")
    merger: _Merger[S] | None = None
    for path in paths:
        with _naming(path):
            arrays, meta = upgraded_state(*load_checked(path), path)
            merger = merger or _Merger(cls, arrays, meta)
            merger.take_in(arrays, meta)
            del arrays  # a map of the file counts as memory, too
    assert merger is not None
    merger.adapter._take_gathered(merger.gathering)
    return merger.adapter, merger.note


class _Merger(Generic[S]):
    """An adapter set up like the one of the first state, and the samples of all states."""

    def __init__(self, cls: type[S], arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        cls._check_meta(meta)
        self.adapter, self.note = cls(arrays["text_features"], **meta["params"]), meta.get("note")
        self.adapter._check_merges()
        self.gathering = Gathering(self.adapter._empty_queues(), self.adapter._empty_samples())

    def take_in(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Add the samples of a state that is set up like the first."""
        self.adapter._check_meta(meta)
        if meta["params"] != self.adapter.params:
            raise ValueError(f"cannot be merged into {self.adapter!r}: it is set up differently")
        if not np.array_equal(arrays["text_features"], self.adapter._given_text):
            raise ValueError("cannot be merged: its text features are others")
        if _shared(meta.get("note")) != _shared(self.note):
            raise ValueError("cannot be merged: its note is not that of the first file")
        self.gathering.take_in(*self.adapter._stored(arrays, meta))


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What is wrong with a state is said with the name of its file."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]} is missing from the state") from error
    except (TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        named = str(error).startswith(f"{path}: ")
        raise ValueError(str(error) if named else f"{path}: {error}") from error


def _shared(note: Any) -> Any:
    """What the notes of all machines have in common."""
    if not isinstance(note, dict):
        return note
    return {key: value for key, value in note.items() if key not in _OF_A_MACHINE}
