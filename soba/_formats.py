"""Formats of what soba stores, and the steps that bring what former versions stored up to today's.

One number is the format of all of it: state files, deltas, and the streams of a database. Whoever
changes what is stored adds a step here, from the format before to the next, and what is read takes
all the steps from its own format on. (Deltas of format 2 say that they are of format 1.)

Format 3: SOBA+ keeps its uniform sample and no queue. Of format 2 the sample and the known ids are
taken over; queues are dropped, statistics are made anew. Nobody wrote down where in the stream a
sample had been: its place is 0. So all of them came before whatever comes next, in an order that
is not known, and a class prior that is tested by prediction finds nothing in them to predict. In a
log it is known how many samples came before each delta, so those get their true places.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from soba._files import checked_bytes, read_checked_bytes

_log = logging.getLogger(__name__)

FORMAT = 3
OLDEST = 2  # that can be read
_FIRST_DELTAS = 1  # what deltas of format 2 say

_SAMPLES = ("sample", "older_sample")
_SAMPLE_SIZE = 512  # of SOBA+ in format 2, unless something else was asked for

Arrays = dict[str, np.ndarray]
Meta = dict[str, Any]


class LogStep(NamedTuple):
    """What a log knows of its deltas that they do not say themselves."""

    setups: Mapping[str, str]  # fingerprints of set-ups in the former format -> today's
    n_seen: int  # samples that were learned before this delta


def check_format(what: str, found: Any) -> None:
    """Raise ValueError unless this version reads what was stored in a format."""
    if type(found) is int and found > FORMAT:
        raise ValueError(
            f"{what} was written by a newer soba (format {found}); this one reads up to {FORMAT}: "
            "upgrade"
        )
    if type(found) is not int or found < OLDEST:
        raise ValueError(f"{what} is of format {found!r}, this version reads {OLDEST} to {FORMAT}")


def delta_format(meta: Meta) -> int:
    """The format of a delta that says this of itself, if it can be read."""
    found: int = OLDEST if meta["format"] == _FIRST_DELTAS else meta["format"]
    check_format("it", found)
    return found


def upgraded_state(arrays: Arrays, meta: Meta, path: Any = None) -> tuple[Arrays, Meta]:
    """A state in today's format; where a file held it, one line in the log says so."""
    former = meta["format"]
    check_format("the state", former)
    before = meta
    for step in _STATES[former - OLDEST :]:
        arrays, meta = step(arrays, meta)
    if path is not None and meta is not before:
        _log.info("%s: a state of format %d, read as format %d", path, former, FORMAT)
    return arrays, {**meta, "format": FORMAT}


def upgraded_delta(blob: bytes, log: LogStep) -> bytes:
    """A delta of a log in today's format."""
    arrays, meta = read_checked_bytes("delta", blob)
    for step in _DELTAS[delta_format(meta) - OLDEST :]:
        arrays, meta = step(arrays, meta, log)
    return checked_bytes("delta", arrays, {**meta, "format": FORMAT})


def _state_without_queue(arrays: Arrays, meta: Meta) -> tuple[Arrays, Meta]:
    """From format 2 to 3."""
    if meta["adapter"] != "soba+":
        return arrays, meta
    params = {name: value for name, value in meta["params"].items() if name != "capacity"}
    if params["sample_size"] == _SAMPLE_SIZE:
        params["sample_size"] = None
    gone = ("queue.", "older.", "statistics.", "known")
    kept = {name: array for name, array in arrays.items() if not name.startswith(gone)}
    by_id = (meta["given_space"] or "").startswith("manifest ")
    for sample in _SAMPLES:
        ids = arrays.get(f"{sample}.ids")
        if ids is not None:
            kept[f"{sample}.places"] = ids.copy() if by_id else np.zeros(len(ids), np.int64)
    # None: of what is kept; an empty list: there has been no refresh.
    statistics: list[str] | None = None if meta["statistics"] else []
    rest = {name: value for name, value in meta.items() if name != "refreshed"}
    return kept, rest | {"params": params, "statistics": statistics}


def _delta_without_queue(arrays: Arrays, meta: Meta, log: LogStep) -> tuple[Arrays, Meta]:
    """From format 2 to 3."""
    setup = log.setups.get(meta["setup"], meta["setup"])
    if setup == meta["setup"]:
        return arrays, meta  # of a method that has its queue still
    rows = arrays.get("entered.sample", np.empty(0, np.int64))
    carried = ("positions", "features", "labels", "entropies")
    kept = {"ids": arrays["ids"], "ends": arrays["ends"]}
    kept |= {name: arrays[name][rows] for name in carried}
    if len(rows):
        places = (log.n_seen + kept["positions"]).astype("<i8")
        kept["entered.sample"] = np.arange(len(rows))
        kept["extra.sample"] = places.view(np.uint8).reshape(len(rows), -1)
    return kept, {**meta, "setup": setup, "stores": ["sample"] if len(rows) else []}


# From format 2 on, each to the next one.
_STATES: tuple[Callable[[Arrays, Meta], tuple[Arrays, Meta]], ...] = (_state_without_queue,)
_DELTAS: tuple[Callable[[Arrays, Meta, LogStep], tuple[Arrays, Meta]], ...] = (
    _delta_without_queue,
)
assert len(_STATES) == len(_DELTAS) == FORMAT - OLDEST
