"""What the methods share that let neighbouring samples vote: exact neighbours, soft labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_BLOCK_COSINES = 1 << 22
_BLOCK_LABELS = 1 << 20


@dataclass(frozen=True)
class Neighbours:
    """Edges between samples, both ways, row by row."""

    count: int  # neighbours that each sample has chosen
    starts: np.ndarray  # (n + 1,) where the edges of each row begin
    ends: np.ndarray  # (2 n count,) the other sample
    weights: np.ndarray  # their cosine

    @classmethod
    def of(cls, x: np.ndarray, count: int) -> Neighbours:
        """Each sample's `count` nearest others by cosine, exactly, a block of rows at a time."""
        n = len(x)
        if count < 1:
            return cls(0, np.zeros(n + 1, np.int64), np.empty(0, np.int64), np.empty(0))
        nearest = np.empty((n, count), np.int64)
        for rows in blocks(n, n, _BLOCK_COSINES):
            cosines = x[rows] @ x.T
            itself = np.arange(rows.start, rows.start + len(cosines))
            cosines[np.arange(len(itself)), itself] = -np.inf
            nearest[rows] = np.argpartition(cosines, n - count, axis=1)[:, n - count :]
        chooser, chosen = np.repeat(np.arange(n), count), nearest.reshape(-1)
        weights = np.empty(len(chosen))
        for rows in blocks(len(chosen), x.shape[1]):
            # From the pair alone: a cosine of a large product rounds by its place in it.
            pair = x[chooser[rows]].astype(np.float64), x[chosen[rows]].astype(np.float64)
            weights[rows] = np.einsum("id,id->i", *pair)
        begins, ends = np.concatenate([chooser, chosen]), np.concatenate([chosen, chooser])
        order = np.argsort(begins, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(begins, minlength=n))])
        return cls(count, starts, ends[order], np.concatenate([weights, weights])[order])

    def with_votes(self, fixed: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """(n, C) `fixed` + the mean of the neighbours' soft labels, weighted by their cosines."""
        answers = fixed.copy()
        if self.count:
            for rows in blocks(len(labels), 2 * self.count * labels.shape[1]):
                answers[rows] += self.votes(labels, rows) / (2 * self.count)
        return answers

    def votes(self, labels: np.ndarray, rows: slice) -> np.ndarray:
        """Sums of the neighbours' soft labels, weighted, of some rows."""
        starts = self.starts[:-1][rows]
        stop = self.starts[min(rows.stop, len(labels))]
        edges = slice(int(starts[0]), int(stop))
        weighted = self.weights[edges, None] * labels[self.ends[edges]]
        votes: np.ndarray = np.add.reduceat(weighted, starts - edges.start, axis=0)
        return votes


def unit(rows: np.ndarray, instead: np.ndarray) -> np.ndarray:
    """Unit rows; those without a direction keep another."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    directions: np.ndarray = np.where(
        lengths > 0, rows / np.where(lengths > 0, lengths, 1.0), instead
    )
    return directions


def soft_labels(answers: np.ndarray) -> np.ndarray:
    """The softmax of each row."""
    labels: np.ndarray = np.exp(answers - answers.max(axis=1, keepdims=True))
    labels /= labels.sum(axis=1, keepdims=True)
    return labels


def blocks(rows: int, width: int, values: int = _BLOCK_LABELS) -> list[slice]:
    """Slices of so many rows that each has about `values` numbers."""
    step = max(1, values // max(width, 1))
    return [slice(at, at + step) for at in range(0, rows, step)]
