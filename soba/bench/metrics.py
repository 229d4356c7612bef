"""How good the answers are: accuracy and calibration, both in percent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Over orders: the standard deviation of a sample, and 0 where there is one value only.

    Examples
    --------
    >>> mean_and_std([1.0, 3.0]), mean_and_std([2.0])
    ((2.0, 1.4142135623730951), (2.0, 0.0))
    """
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return float(np.mean(values)), std


def tail_size(orders: int) -> int:
    """How many orders are the worst tenth; one at least."""
    return -(-orders // 10)


def expected_tail_accuracy(accuracies: Sequence[float]) -> float:
    """Mean of the worst tenth of the orders: what a stream in bad luck can expect.

    The measure is OGA's, over 100 orders there.

    Examples
    --------
    >>> expected_tail_accuracy([float(x) for x in range(20)]), expected_tail_accuracy([3.0, 2.0])
    (0.5, 2.0)
    """
    return float(np.mean(sorted(accuracies)[: tail_size(len(accuracies))]))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits, a row each."""
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: np.ndarray = e / e.sum(axis=-1, keepdims=True)
    return probabilities


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Top-1 accuracy in percent.

    Examples
    --------
    >>> accuracy(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    50.0
    """
    return 100.0 * float((logits.argmax(axis=1) == labels).mean())


def accuracy_at_coverage(
    probabilities: np.ndarray, labels: np.ndarray, coverages: np.ndarray
) -> np.ndarray:
    """Top-1 accuracy in percent on the surest share of the samples, for each share.

    Examples
    --------
    >>> probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.45, 0.55]])
    >>> accuracy_at_coverage(probabilities, np.array([0, 0, 1, 1]), np.array([0.5, 1.0])).tolist()
    [100.0, 75.0]
    """
    hit = probabilities.argmax(axis=1) == labels
    order = np.argsort(-probabilities.max(axis=1), kind="stable")
    answered = np.clip(np.ceil(coverages * len(labels)).astype(int), 1, len(labels))
    right: np.ndarray = 100.0 * np.cumsum(hit[order])[answered - 1] / answered
    return right


def accuracy_over_stream(logits: np.ndarray, labels: np.ndarray, parts: int = 20) -> np.ndarray:
    """Top-1 accuracy in percent of each twentieth of a stream, in its order.

    A part without samples, in a stream of fewer than `parts`, repeats the part before it.

    Examples
    --------
    >>> logits = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> accuracy_over_stream(logits, np.array([0, 1, 1]), parts=4).tolist()
    [100.0, 0.0, 100.0, 100.0]
    """
    hits = np.cumsum(np.append(0, logits.argmax(axis=1) == labels))
    edges = np.ceil(np.arange(parts + 1) * len(labels) / parts).astype(int)
    counts = np.diff(edges)
    last = np.maximum.accumulate(np.where(counts > 0, np.arange(parts), 0))  # with samples
    means: np.ndarray = 100.0 * np.diff(hits[edges])[last] / np.maximum(1, counts[last])
    return means


def calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error in percent: |confidence - accuracy| over equal-width bins.

    Examples
    --------
    >>> sure_and_right = np.array([[0.9, 0.1]] * 10)
    >>> round(calibration_error(sure_and_right, np.zeros(10, int)), 6)
    10.0
    """
    confidence = probabilities.max(axis=1)
    hit = probabilities.argmax(axis=1) == labels
    edges = np.linspace(0.0, 1.0, bins + 1)[1:-1]
    where = np.digitize(confidence, edges, right=True)
    gap = np.bincount(where, confidence - hit, minlength=bins)
    return 100.0 * float(np.abs(gap).sum() / len(labels))
