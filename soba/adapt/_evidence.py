"""What the queue of SOBA+ holds of each class, in expected samples, and one step of EM on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soba.adapt._statistics import ClassStatistics

CANDIDATES = 4  # classes an item may be shared out among: CLIP's likeliest
LEAST_MASS = 0.05  # of samples, for a class to count as seen
SURE, DOUBT = 0.95, 0.05  # items surer than this stay put; those less sure by DOUBT are free


def candidate_type(classes: int) -> np.dtype[np.void]:
    """What is kept with a sample: its likeliest classes, and their log-probabilities."""
    few = min(CANDIDATES, classes)
    return np.dtype([("class", np.int32, (few,)), ("log_prob", np.float32, (few,))])


@dataclass(frozen=True)
class Evidence:
    """What the queue holds of each class, in expected samples."""

    mass: np.ndarray  # (C,) n_k
    squares: np.ndarray  # (C,) sum of squared weights
    sums: np.ndarray  # (C, d) weighted sum of features, float32

    @classmethod
    def of(
        cls, statistics: ClassStatistics, labels: np.ndarray, weights: np.ndarray, classes: int
    ) -> Evidence:
        """The evidence before EM: item i counts as weights[i] samples of its label."""
        sums = np.zeros((classes, statistics.means.shape[1]), np.float32)
        sums[statistics.seen] = statistics.mass[:, None] * statistics.means
        return cls(
            np.bincount(labels, weights, classes), np.bincount(labels, weights**2, classes), sums
        )

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the pooled covariance: a class of one sample has none."""
        seen = self.mass > LEAST_MASS
        return float((1.0 - self.squares[seen] / self.mass[seen] ** 2).sum())

    def apart(self, trace: float) -> float:
        """Variance between the classes, what is due to the error of their means taken off.

        No class is taken to be tighter than this: repeated frames are not independent samples,
        and look as if a class were a point.
        """
        seen = self.mass > LEAST_MASS
        sums, mass = self.sums[seen], self.mass[seen]
        centre = (1.0 / mass).astype(np.float32) @ sums / len(mass)
        spread = (np.vecdot(sums, sums) / mass**2).mean() - centre @ centre
        return float(spread - trace * (self.squares[seen] / mass**2).mean())

    def shared_out(
        self,
        rows: np.ndarray,
        candidates: np.ndarray,
        confidence: np.ndarray,
        weights: np.ndarray,
        bias: np.ndarray,
    ) -> Evidence:
        """One step of EM: each item goes to its candidate classes by their probability now."""
        options, log_probs = candidates["class"], candidates["log_prob"]
        scores = log_probs + bias[options]
        for column in range(options.shape[1]):
            scores[:, column] += np.vecdot(rows, weights[options[:, column]])
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        # What an item gives away goes up with doubt, not by a jump at a threshold.
        free = confidence * np.clip((SURE - confidence) / DOUBT, 0.0, 1.0)
        share *= (free / share.sum(axis=1))[:, None]
        change = share.copy()
        change[:, 0] -= free
        share[:, 0] += confidence - free
        classes, where = len(self.mass), options.reshape(-1)
        mass = self.mass + np.bincount(where, change.reshape(-1), classes)
        squares = self.squares + np.bincount(where, share.reshape(-1) ** 2, classes)
        squares -= np.bincount(options[:, 0], confidence**2, classes)
        sums = self.sums.copy()
        for start in range(0, len(rows), 1024):
            block = slice(start, start + 1024)
            moves = np.zeros((len(rows[block]), classes), np.float32)
            np.put_along_axis(moves, options[block].astype(np.int64), change[block], axis=1)
            sums += moves.T @ rows[block]
        return Evidence(np.maximum(mass, 0.0), np.maximum(squares, 0.0), sums)
