"""How good the answers are: accuracy and calibration, both in percent."""

from __future__ import annotations

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits, a row each."""
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: np.ndarray = e / e.sum(axis=-1, keepdims=True)
    return probabilities


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Top-1 accuracy in percent.

    >>> accuracy(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    50.0
    """
    return 100.0 * float((logits.argmax(axis=1) == labels).mean())


def calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error in percent: |confidence - accuracy| over equal-width bins.

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
