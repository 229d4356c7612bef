"""Class means and within-class covariance of a queue, in one cache-friendly pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soba.adapt.queue import EntropyQueue

_BLOCK_ROWS, _PRODUCT_ROWS = 512, 4096  # what fits the cache, and what makes a good product


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
    scatter = np.zeros((width, width))
    stored = queue.features.reshape(-1, width)
    most, used = int(sizes.max(initial=1)), 0
    residuals = np.empty((max(_PRODUCT_ROWS, most), width), np.float32)
    for size in np.unique(sizes).tolist():  # classes of one size make a rectangle
        members = np.flatnonzero(sizes == size)
        step = max(1, _BLOCK_ROWS // size)
        for start in range(0, len(members), step):
            block = members[start : start + step]
            if used + len(block) * size > len(residuals):
                scatter += residuals[:used].T @ residuals[:used]
                used = 0
            classes = seen[block]
            at = classes[:, None] * queue.features.shape[1] + queue.slots[classes, :size]
            rows = residuals[used : used + at.size].reshape(len(block), size, width)
            np.take(stored, at, axis=0, out=rows, mode="clip")  # "clip" writes straight to out
            mean = np.full((1, size), 1.0 / size, np.float32) @ rows  # (k, 1, d)
            means[block] = mean[:, 0]
            if covariance and size > 1:
                rows -= mean
                if size < most:  # weights 1/n_k, in units of 1/most: full classes need none
                    rows *= np.float32((most / size) ** 0.5)
                used += at.size
    if used:
        scatter += residuals[:used].T @ residuals[:used]
    scatter /= most * max(len(seen), 1)
    return ClassStatistics(seen, sizes, means, scatter)


def ridge_solve(covariance: np.ndarray, samples: int, rows: np.ndarray) -> np.ndarray:
    """rows @ ((n - 1) C + tr(C) I)^-1: the ridge precision of GDA, up to its factor d."""
    ridge = (samples - 1) * covariance
    ridge[np.diag_indices_from(ridge)] += np.trace(covariance)
    solved: np.ndarray
    if len(rows) < len(ridge) // 2:
        solved = np.linalg.solve(ridge, rows.T).T
    else:
        # The condition number is below n, so float32 is good to about 1e-6 for queues of a usual
        # size, at half the time.
        dtype = np.float32 if samples <= 1 << 16 else np.float64
        solved = rows.astype(dtype) @ inverse(ridge.astype(dtype))
    return solved


def inverse(matrix: np.ndarray) -> np.ndarray:
    """The inverse of a symmetric positive definite matrix, by Cholesky.

    numpy solves by LU and has no triangular solve; this takes half the time.
    """
    root = _lower_inverse(np.linalg.cholesky(matrix))
    inverted: np.ndarray = root.T @ root
    return inverted


def _lower_inverse(lower: np.ndarray) -> np.ndarray:
    """Halve until small: the rest is matrix products."""
    n = len(lower)
    if n <= 64:
        return np.linalg.inv(lower)
    half = n // 2
    out = np.zeros_like(lower)
    out[:half, :half] = _lower_inverse(lower[:half, :half])
    out[half:, half:] = _lower_inverse(lower[half:, half:])
    out[half:, :half] = -out[half:, half:] @ (lower[half:, :half] @ out[:half, :half])
    return out
