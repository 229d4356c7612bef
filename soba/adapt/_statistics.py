"""Class means and within-class scatter of a queue, in one cache-friendly pass; ridge solves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soba.adapt.queue import EntropyQueue

_BLOCK_ROWS, _PRODUCT_ROWS = 512, 4096  # what fits the cache, and what makes a good product


@dataclass(frozen=True)
class ClassStatistics:
    """Over the classes that hold at least one sample.

    The within-class scatter is sum_k 1/n_k sum_i (f_i - mu_k)(f_i - mu_k)^T. Where there are
    fewer samples than dimensions it is kept as its root: the residuals, scaled.
    """

    seen: np.ndarray  # (S,) class indices
    sizes: np.ndarray  # (S,) samples a class
    means: np.ndarray  # (S, d) float64
    residuals: np.ndarray | None  # (n, d) with scatter = residuals^T residuals, if n < d
    scatter: np.ndarray | None  # (d, d) float64 otherwise

    @property
    def trace(self) -> float:
        """Trace of the within-class scatter."""
        if self.residuals is not None:
            return float(np.vdot(self.residuals, self.residuals))
        return 0.0 if self.scatter is None else float(np.trace(self.scatter))

    @property
    def scattered(self) -> bool:
        """Whether any class has scatter, as opposed to copies of one sample that rounded."""
        return self.trace > 1e-10 * len(self.seen)

    @property
    def covariance(self) -> np.ndarray:
        """(d, d) float64: the mean over classes of their MLE covariances."""
        scatter = self.scatter
        if self.residuals is not None:
            scatter = (self.residuals.T @ self.residuals).astype(np.float64)
        assert scatter is not None
        return scatter / len(self.seen)


def class_statistics(queue: EntropyQueue, *, scatter: bool = True) -> ClassStatistics:
    """Means, and the within-class scatter.

    Products are float32, their sums float64: close to float64 throughout at half the time.
    Samples are read in canonical order, so equal queues give equal bits.
    """
    seen = np.flatnonzero(queue.sizes)
    sizes = queue.sizes[seen]
    width, total = queue.dim, int(sizes.sum())
    means = np.empty((len(seen), width))
    stored = queue.features.reshape(-1, width)
    summed = np.zeros((width, width)) if scatter and total >= width else None
    # Residuals are in units of sqrt(1/most): full classes need no scaling then.
    most, used = int(sizes.max(initial=1)), 0
    room = max(_PRODUCT_ROWS, most) if summed is not None else total
    residuals = np.empty((room, width), np.float32)
    for size in np.unique(sizes).tolist():  # classes of one size make a rectangle
        members = np.flatnonzero(sizes == size)
        step = max(1, _BLOCK_ROWS // size)
        for start in range(0, len(members), step):
            block = members[start : start + step]
            if used + len(block) * size > len(residuals):
                assert summed is not None
                summed += residuals[:used].T @ residuals[:used]
                used = 0
            classes = seen[block]
            at = classes[:, None] * queue.features.shape[1] + queue.slots[classes, :size]
            rows = residuals[used : used + at.size].reshape(len(block), size, width)
            np.take(stored, at, axis=0, out=rows, mode="clip")  # "clip" writes straight to out
            mean = np.full((1, 1, size), 1.0 / size, np.float32) @ rows  # (k, 1, d)
            means[block] = mean[:, 0]
            if scatter:
                rows -= mean
                if size < most:
                    rows *= np.float32((most / size) ** 0.5)
                used += at.size
    if summed is None:
        root = residuals[:used] * np.float32(most**-0.5) if scatter else None
        return ClassStatistics(seen, sizes, means, root, None)
    summed += residuals[:used].T @ residuals[:used]
    return ClassStatistics(seen, sizes, means, None, summed / most)


class Ridge:
    """(S + r I)^-1 for a scatter S, applied to rows.

    With fewer samples than dimensions it works in the space of the samples (Woodbury).
    """

    def __init__(self, statistics: ClassStatistics, scale: float, ridge: float) -> None:
        """S is `scale` times the scatter; r is `ridge`."""
        self._ridge, self._root = ridge, np.zeros((0, 0), np.float32)
        if statistics.residuals is not None:
            self._root = statistics.residuals * np.float32(scale**0.5)
            small = (self._root @ self._root.T).astype(np.float64)
        else:
            assert statistics.scatter is not None
            small = scale * statistics.scatter
        small[np.diag_indices_from(small)] += ridge
        # The condition number is below tr(S)/r. Up to some ten thousand, float32 is good to about
        # 1e-6, at half the time.
        well = scale * statistics.trace <= 65536.0 * ridge
        self._inverse = inverse(small.astype(np.float32 if well else np.float64))

    def solve(self, rows: np.ndarray) -> np.ndarray:
        """rows @ (S + r I)^-1, float32."""
        rows = rows.astype(self._inverse.dtype)
        if len(self._root) == 0:
            solved = rows @ self._inverse
        else:
            inside = (rows @ self._root.T) @ self._inverse
            solved = (rows - inside @ self._root) / self._inverse.dtype.type(self._ridge)
        single: np.ndarray = solved.astype(np.float32, copy=False)
        return single


def ridge_solve(statistics: ClassStatistics, rows: np.ndarray) -> np.ndarray:
    """rows @ ((n - 1) C + tr(C) I)^-1: the ridge precision of GDA, up to its factor d."""
    samples, classes = int(statistics.sizes.sum()), len(statistics.seen)
    return Ridge(statistics, (samples - 1) / classes, statistics.trace / classes).solve(rows)


def inverse(matrix: np.ndarray) -> np.ndarray:
    """The inverse of a symmetric positive definite matrix, by Cholesky.

    numpy inverts by LU and has no triangular solve; this takes a third of the time.
    """
    root = _inverse_root(matrix)
    inverted: np.ndarray = root.T @ root
    return inverted


def _inverse_root(matrix: np.ndarray) -> np.ndarray:
    """L^-1 for matrix = L L^T: halve until small, the rest is matrix products."""
    n = len(matrix)
    if n <= 32:
        return np.linalg.inv(np.linalg.cholesky(matrix))
    half = n // 2
    out = np.zeros_like(matrix)
    first = out[:half, :half] = _inverse_root(matrix[:half, :half])
    below = matrix[half:, :half] @ first.T
    last = out[half:, half:] = _inverse_root(matrix[half:, half:] - below @ below.T)
    out[half:, :half] = -last @ (below @ first)
    return out
