"""Rows that belong to a few classes each: their scores there, and sums by class.

Both go in blocks that stay in the cache, and rows are named by their place in a larger array, so
that neither a copy of all rows nor a product with all classes is made.
"""

from __future__ import annotations

import numpy as np

_BLOCK_ROWS = 256  # gathered at a time
_PIECE_ROWS = 256  # of one class, at most, that are summed by one product


def option_scores(
    rows: np.ndarray, at: np.ndarray, weights: np.ndarray, options: np.ndarray
) -> np.ndarray:
    """(n, k): the products of rows[at] (n, d) with the weights (C, d) of k classes for each."""
    n, few = options.shape
    scores = np.empty((n, few), rows.dtype)
    gathered = np.empty((min(n, _BLOCK_ROWS), few, rows.shape[1]), weights.dtype)
    for start in range(0, n, _BLOCK_ROWS):
        some = slice(start, start + _BLOCK_ROWS)
        block = gathered[: len(options[some])]
        np.take(weights, options[some], axis=0, out=block, mode="clip")  # "clip" writes straight
        scores[some] = (block @ rows[at[some], :, None])[:, :, 0]
    return scores


def add_segments(
    sums: np.ndarray, rows: np.ndarray, at: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> None:
    """Add weights (n,) times rows[at] to the sums (C, d) of their classes.

    Sorted by class, the rows make segments, cut into pieces; pieces of one size make a rectangle,
    and products of rectangles are ten times as fast as sums of segments.
    """
    order = np.argsort(labels, kind="stable")
    labels, at, weights = labels[order], at[order], weights[order].astype(np.float32)
    starts, sizes = _pieces(labels)
    # Not empty: where rows are of another type, numpy casts what lies there before it takes any.
    room = np.zeros((max(_BLOCK_ROWS, int(sizes.max(initial=0))), rows.shape[1]), np.float32)
    for size in np.unique(sizes).tolist():
        alike = starts[sizes == size]
        step = max(1, len(room) // size)
        for first in range(0, len(alike), step):
            some = alike[first : first + step]
            places = some[:, None] + np.arange(size)  # (pieces, size)
            block = room[: places.size]
            np.take(rows, at[places].reshape(-1), axis=0, out=block, mode="clip")
            summed = weights[places][:, None, :] @ block.reshape(len(some), size, -1)
            if size < _PIECE_ROWS:  # a class has one piece at most that is not whole
                sums[labels[some]] += summed[:, 0]
            else:
                np.add.at(sums, labels[some], summed[:, 0])


def _pieces(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where pieces of sorted labels start, and their sizes: each is of one class, and not long."""
    places = np.arange(len(labels))
    opens = np.append(True, labels[1:] != labels[:-1])[: len(labels)]
    inside = places - np.maximum.accumulate(np.where(opens, places, 0))
    starts = np.flatnonzero(inside % _PIECE_ROWS == 0)
    return starts, np.diff(np.append(starts, len(labels)))
