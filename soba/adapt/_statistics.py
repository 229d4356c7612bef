"""Class means and within-class covariance of a queue, in one cache-friendly pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soba.adapt.queue import EntropyQueue

_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class ClassStatistics:
    """Over the classes that hold at least one sample."""

    seen: np.ndarray  # (S,) class indices
    sizes: np.ndarray  # (S,) samples a class
    means: np.ndarray  # (S, d) float64
    covariance: np.ndarray  # (d, d) float64: the mean over classes of their MLE covariances


def class_statistics(queue: EntropyQueue, *, covariance: bool = True) -> ClassStatistics:
    """Means mu_k, and C = 1/S sum_k 1/n_k sum_i (f_i - mu_k)(f_i - mu_k)^T over seen classes.

    Products are float32, their sums float64: close to float64 throughout at half the time.
    Samples are read in canonical order, so equal queues give equal bits.
    """
    seen = np.flatnonzero(queue.sizes)
    sizes = queue.sizes[seen]
    width = queue.width
    means = np.empty((len(seen), width))
    scatter = np.zeros((width, width) if covariance else (0, 0))
    ends = np.cumsum(sizes)
    first = 0
    while first < len(seen):
        # Whole classes, until a block is full.
        reach = (ends[first - 1] if first else 0) + _BLOCK_ROWS
        last = max(int(ends.searchsorted(reach, side="right")), first + 1)
        block = seen[first:last]
        counts = sizes[first:last]
        rows = _rows(queue, block)
        starts = np.cumsum(counts) - counts
        mean = np.add.reduceat(rows, starts, axis=0, dtype=np.float64) / counts[:, None]
        means[first:last] = mean
        if covariance:
            rows = rows - np.repeat(mean.astype(np.float32), counts, axis=0)
            rows *= np.repeat(1.0 / np.sqrt(counts), counts).astype(np.float32)[:, None]
            scatter += rows.T @ rows
        first = last
    return ClassStatistics(seen, sizes, means, scatter / max(len(seen), 1))


def _rows(queue: EntropyQueue, classes: np.ndarray) -> np.ndarray:
    """The samples of some classes, one under the other."""
    slots = queue.features.shape[1]
    if classes[-1] - classes[0] + 1 == len(classes):  # neighbours: slices, not copies
        features = queue.features[classes[0] : classes[-1] + 1]
        sizes = queue.sizes[classes[0] : classes[-1] + 1]
    else:
        features, sizes = queue.features[classes], queue.sizes[classes]
    if bool((sizes == slots).all()):
        return features.reshape(-1, queue.width)
    rows: np.ndarray = features[np.arange(slots) < sizes[:, None]]
    return rows
