"""The order that samples have in a queue: by class, then entropy, then id; copies tie."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_BLOCK_ROWS = 4096  # of features that are compared at a time
TWIN_GAP = 1e-6  # in every coordinate: features this close are copies of one image


def arrival(ids: np.ndarray) -> np.ndarray:
    """Ids as numbers to sort by: -1, -2, ... in the order they were counted, then given ids.

    >>> np.argsort(arrival(np.array([7, -3, 0, -1, -2]))).tolist()
    [3, 4, 1, 2, 0]
    """
    return np.where(ids < 0, ids ^ np.iinfo(np.int64).max, ids)


def before(one: np.int64, other: np.int64) -> bool:
    """Whether an id sorts before another."""
    first, second = arrival(np.array([one, other]))
    return bool(first < second)


def canonical_order(labels: np.ndarray, entropies: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """np.lexsort((ids, entropies, labels)), which is three slow sorts, by one and a half."""
    order = np.argsort(entropies)
    if len(labels) and labels.max() < 1 << 15:
        labels = labels.astype(np.int16)  # numpy sorts these by radix
    order = order[np.argsort(labels[order], kind="stable")]
    first, second = order[:-1], order[1:]
    if ((labels[first] == labels[second]) & (entropies[first] == entropies[second])).any():
        return np.lexsort((arrival(ids), entropies, labels))
    return order


def settle_twins(
    order: np.ndarray,
    labels: np.ndarray,
    entropies: np.ndarray,
    ids: np.ndarray,
    feature_rows: Callable[[np.ndarray], np.ndarray],
    tolerance: float,
) -> bool:
    """Give copies of one image one entropy (in place); say whether anything changed.

    Copies are neighbours in canonical order whose entropies agree to a relative `tolerance` and
    whose features, which `feature_rows` fetches for some rows, agree to TWIN_GAP.
    """
    first, second = order[:-1], order[1:]
    near = (labels[first] == labels[second]) & (
        entropies[second] - entropies[first] <= tolerance * np.abs(entropies[first])
    )
    at = np.flatnonzero(near)
    if len(at) == 0:
        return False
    gap = np.empty(len(at))
    for start in range(0, len(at), _BLOCK_ROWS):
        some = at[start : start + _BLOCK_ROWS]
        apart = np.abs(feature_rows(order[some]) - feature_rows(order[some + 1]))
        gap[start : start + _BLOCK_ROWS] = apart.max(axis=1, initial=0.0)
    at = at[gap <= TWIN_GAP]
    if len(at) == 0:
        return False
    # Runs of adjacent twins: each takes the entropy of its smallest id.
    starts = at[np.concatenate([[True], np.diff(at) > 1])]
    ends = at[np.concatenate([np.diff(at) > 1, [True]])] + 1
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        run = order[start : end + 1]
        entropies[run] = entropies[run[np.argmin(arrival(ids[run]))]]
    return True
