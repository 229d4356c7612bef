"""A delta: what one call put into an adapter, for another adapter to take in as it is."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from soba._files import checked_bytes, read_checked_bytes
from soba._formats import FORMAT, delta_format
from soba.adapt._ids import packed, unpacked

_WHAT = "delta"  # as errors call it


@dataclass(frozen=True, eq=False)
class Delta:
    """What one call of `adapt_changes` or `learn_changes` learned, and where it was kept.

    A value: its arrays can only be read. `n` samples were learned; of these the `m` that entered a
    queue or a uniform sample are carried, with all that frozen CLIP said of them, so that whoever
    absorbs the delta computes nothing.

    Examples
    --------
    >>> from soba import NCM
    >>> ncm, twin = NCM(np.eye(2), logit_scale=10.0), NCM(np.eye(2), logit_scale=10.0)
    >>> delta = ncm.learn_changes(np.array([[0.8, 0.6], [0.6, 0.8]]), ids=[7, 9])
    >>> len(delta), delta.ids.tolist(), delta.labels.tolist()
    (2, [7, 9], [0, 1])
    >>> twin.absorb(Delta.from_bytes(delta.to_bytes())).n_seen
    2
    """

    setup: str  # fingerprint of the method, its parameters and its text
    id_space: str  # of the ids: "count", "given", or as it was named
    refreshes: (
        bool  # whether statistics refresh where one falls due: `adapt` does, `learn` does not
    )
    ids: (
        np.ndarray
    )  # (n,) of all samples learned, in this order, also of those that entered nothing
    ends: np.ndarray  # (p,) where the pieces end that were learned at a time; the last is n
    positions: np.ndarray  # (m,) ascending: which samples are carried
    features: np.ndarray  # (m, d) float32, as a queue keeps them
    labels: np.ndarray  # (m,)
    entropies: np.ndarray  # (m,)
    entered: Mapping[str, np.ndarray]  # store -> (k,) ascending, which of the carried entered it
    extra: Mapping[str, np.ndarray]  # store -> (k, e) bytes that it keeps with each of them

    def __post_init__(self) -> None:
        _check(self)
        for array in (*_plain_arrays(self).values(), *self.entered.values(), *self.extra.values()):
            array.flags.writeable = False

    def __len__(self) -> int:
        """How many samples were learned."""
        return len(self.ids)

    def to_bytes(self) -> bytes:
        """As safetensors with a checksum; equal deltas have equal bytes."""
        arrays = _plain_arrays(self)
        arrays["ids"] = packed(self.ids)
        for store, rows in self.entered.items():
            arrays |= {f"entered.{store}": rows, f"extra.{store}": self.extra[store]}
        meta = {
            "format": FORMAT,
            "setup": self.setup,
            "id_space": self.id_space,
            "refreshes": self.refreshes,
            "stores": sorted(self.entered),
        }
        return checked_bytes(_WHAT, arrays, meta)

    @classmethod
    def from_bytes(cls, blob: bytes) -> Delta:
        """What `to_bytes` made; bytes that are cut short or changed raise ValueError."""
        arrays, meta = read_checked_bytes(_WHAT, blob)
        try:
            delta_format(meta)
            stores = meta["stores"]
            return cls(
                setup=meta["setup"],
                id_space=meta["id_space"],
                refreshes=meta["refreshes"],
                ids=unpacked(arrays["ids"]),
                ends=arrays["ends"],
                positions=arrays["positions"],
                features=arrays["features"],
                labels=arrays["labels"],
                entropies=arrays["entropies"],
                entered={store: arrays[f"entered.{store}"] for store in stores},
                extra={store: arrays[f"extra.{store}"] for store in stores},
            )
        except KeyError as error:
            raise ValueError(f"{_WHAT}: {error.args[0]} is missing") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{_WHAT}: {error}") from error


def fingerprint(name: str, params: Mapping[str, Any], text: np.ndarray) -> str:
    """Of a method, its parameters and its text: deltas of others are refused."""
    described = json.dumps([name, dict(params), text.shape], sort_keys=True)
    digest = hashlib.sha256(described.encode())
    digest.update(np.ascontiguousarray(text, "<f4").data)
    return digest.hexdigest()


def _plain_arrays(delta: Delta) -> dict[str, np.ndarray]:
    names = ("ids", "ends", "positions", "features", "labels", "entropies")
    return {name: getattr(delta, name) for name in names}


def _check(delta: Delta) -> None:
    """Raise if the parts cannot be of one delta: bytes may hold anything."""
    if not isinstance(delta.setup, str) or not isinstance(delta.id_space, str):
        raise ValueError("the set-up and the id space are told in words")
    if not isinstance(delta.refreshes, bool):
        raise ValueError(f"refreshes must be true or false, not {delta.refreshes!r}")
    n, m = len(delta.ids), len(delta.positions)
    due = functools.partial(_check_array, delta)
    due("ids", np.int64, (n,))
    due("ends", np.int64, delta.ends.shape[:1])
    due("positions", np.int64, (m,))
    due("features", np.float32, (m, *delta.features.shape[-1:]))
    due("labels", np.int64, (m,))
    due("entropies", np.float64, (m,))
    _check_ids(delta)
    if not _ascends(delta.ends, n + 1, least=1) or delta.ends[-1:].tolist() != [n][: len(delta)]:
        raise ValueError("the pieces do not end where the samples do")
    if not _ascends(delta.positions, n):
        raise ValueError("the carried samples are not in the order they were learned in")
    if (delta.labels < 0).any():
        raise ValueError("a class that does not exist")
    if not (np.isfinite(delta.features).all() and np.isfinite(delta.entropies).all()):
        raise ValueError("features or entropies hold NaN or infinite values")
    if delta.entered.keys() != delta.extra.keys():
        raise ValueError("entered and extra are not of the same stores")
    for store, rows in delta.entered.items():
        extra = delta.extra[store]
        if rows.dtype != np.int64 or rows.ndim != 1 or not _ascends(rows, m):
            raise ValueError(f"what entered {store} was not carried")
        if extra.dtype != np.uint8 or extra.ndim != 2 or len(extra) != len(rows):
            raise ValueError(f"what {store} keeps with its samples is not a row of bytes each")


def _check_array(delta: Delta, name: str, dtype: type, shape: tuple[int, ...]) -> None:
    array = getattr(delta, name)
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{name} are {array.dtype} of shape {array.shape}, where shape {shape} is due"
        )


def _check_ids(delta: Delta) -> None:
    counted = delta.id_space == "count"
    if len(delta) and not (delta.ids.max() < 0 if counted else delta.ids.min() >= 0):
        raise ValueError(f"the ids are not of space {delta.id_space}")
    if len(delta) > 1 and len(np.unique(delta.ids)) < len(delta):
        raise ValueError("an id is there twice")


def _ascends(rows: np.ndarray, stop: int, least: int = 0) -> bool:
    """Whether row numbers ascend, all of them from `least` to below `stop`."""
    if len(rows) == 0:
        return True
    return bool(least <= rows[0] and rows[-1] < stop and (rows[1:] > rows[:-1]).all())
