"""Gaussians that share one covariance: linear scores of class means under a ridge precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from soba.adapt._arrays import Array, Batch

Apply = Callable[[np.ndarray], np.ndarray]  # (m, d) rows -> the rows times a precision matrix

NO_SCATTER = 1e-9  # squared lengths that are rounding: samples that are copies of each other


def ridge_precision(rows: np.ndarray) -> Apply | None:
    """v -> v A with A = d ((m - 1) S + tr(S) I)^-1, S the covariance of (m, d) rows.

    The estimator of Kubokawa and Srivastava, which OGA and ADAPT use. Of few rows the inverse is
    of m x m products, by Woodbury's identity. None where the rows do not scatter.
    """
    m, d = rows.shape
    x = rows - rows.mean(axis=0)
    ridge = float((x * x).sum()) / max(m - 1, 1)
    if m < 2 or ridge <= NO_SCATTER:
        return None
    if m >= d:
        # solve, not inv: the products that follow are as large as what is solved for.
        matrix = (x.T @ x + ridge * np.eye(d)) / d
        return lambda v: np.linalg.solve(matrix, v.T).T
    gram = x @ x.T + ridge * np.eye(m)
    return lambda v: (v - np.linalg.solve(gram, x @ v.T).T @ x) * (d / ridge)


def discriminant(means: np.ndarray, precision: np.ndarray) -> dict[str, np.ndarray]:
    """(C, d) means and a (d, d) precision -> what `scores` needs.

    Everything is counted from the mean of the means: scores are the same but for a constant that
    all classes share, and a tenth the size, so float32 is enough for them.
    """
    centre = means.mean(axis=0)
    shifted = means - centre
    weights = shifted @ precision
    offsets = -0.5 * (weights * shifted).sum(axis=1)
    return {"centre": centre, "weights": weights, "offsets": offsets, "precision": precision}


def scores(batch: Batch, features: Array, of: Callable[[str], Array]) -> Array:
    """(m, d) features -> (m, C) Gaussian log-likelihoods but for a constant of each row."""
    return (features - of("centre")) @ of("weights").T + of("offsets")
