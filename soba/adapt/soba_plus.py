"""SOBA+: the rotated prototypes of SOBA with the evidence behind them weighed; the default.

Ours, on the paper's queue and rotation. SOBA's fixed weight does harm where a class has few
samples, or none; here every quantity is estimated, and what is not known falls back to CLIP.
Class k is a Gaussian N(mu_k, Sigma) in image space, Sigma shared, and mu_k has a prior from its
text, g + c t_k. From the queue, with item i counted as p_i of a sample, p_i CLIP's confidence:

- S, the pooled within-class covariance; Sigma = S + eps tr(S)/d I shrinks it, up to its size
- c, the slope of the class means on the text; kappa = tr(S) / vb, how many samples the text is
  worth, from the variance vb of the class means around it; m_k, the posterior mean
- score_k(f) = (f - g) A m_k - m_k A m_k / 2 + tr(A S) / (2 (n_k + kappa)), with A = Sigma^-1. The
  last term is bias correction: it gives back what a class loses on its own samples because its
  mean is known only to the precision n_k + kappa.
- one step of EM: queued items are shared out anew among the classes CLIP holds likeliest
- logits = (z + weight * score) / temperature; the weight grows with the fill of the queue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, Clip, to_host
from soba.adapt._schedule import Refresh
from soba.adapt._statistics import Ridge, class_statistics
from soba.adapt._stream import TWIN_TOLERANCE, PrototypeAdapter
from soba.adapt.queue import EntropyQueue, Items

# No dataset has settings of its own; docs/soba_plus.md has what each of these is worth.
SHRINKAGE = 10.0  # eps: the queue holds sure samples only, and fewer than dimensions
TEMPER = 0.05  # one nat of the Gaussians against one of CLIP when the queue is full, as in OGA
CANDIDATES = 4  # classes an item may be shared out among: CLIP's likeliest
LEAST_MASS = 0.05  # of samples, for a class to count as seen
LEAST_SPREAD = 1e-3  # of tr(S), for vb: keeps kappa finite
SURE = 1.1  # items CLIP is surer of than this stay where they are
COOLING = 0.25  # power of the temperature that would keep CLIP's own calibration


class SOBAPlus(PrototypeAdapter):
    """SOBA with its evidence weighed: the default, built to do no harm."""

    name: ClassVar[str] = "soba+"
    provenance: ClassVar[str] = "ours"

    def __init__(
        self,
        text_features: Array,
        *,
        scale: float = 100.0,
        capacity: int | None = 16,
        refresh: Refresh = "growth",
        total: int | None = None,
        max_gap: int | None = None,
    ) -> None:
        super().__init__(text_features, scale=scale)
        self.capacity = capacity
        self.refresh, self.total, self.max_gap = refresh, total, max_gap
        self._reset()

    def _empty_queues(self) -> dict[str, EntropyQueue]:
        return {
            "queue": EntropyQueue(
                self.classes,
                self.width,
                self.capacity,
                extra_width=_candidates(self.classes).itemsize,
                twin_tolerance=TWIN_TOLERANCE,
            )
        }

    def _extra(self, clip: Clip, rows: np.ndarray) -> np.ndarray:
        """CLIP's likeliest classes for a sample, its label first, and their log-probabilities."""
        logits = np.array(to_host(clip.logits[rows]), np.float32)
        kept = np.empty(len(rows), _candidates(self.classes))
        at, label = np.arange(len(rows)), clip.labels[rows]
        top = logits[at, label] - np.log(clip.confidences[rows]).astype(np.float32)
        for column in range(kept["class"].shape[1]):
            best = label if column == 0 else logits.argmax(axis=1)
            kept["class"][:, column] = best
            kept["log_prob"][:, column] = logits[at, best] - top
            logits[at, best] = -np.inf
        return kept.view(np.uint8).reshape(len(rows), -1)

    def _statistics(self) -> dict[str, np.ndarray] | None:
        queue = self.queue
        items = queue.items()
        if len(items.ids) < 2:
            return None
        candidates = items.extra.view(_candidates(self.classes))[:, 0]
        confidence = np.exp(candidates["log_prob"][:, 0].astype(np.float64))
        by_rank = np.zeros(queue.entropies.shape)
        by_rank[queue.filled] = confidence
        found = class_statistics(queue, by_rank)
        evidence = Evidence(
            np.bincount(items.labels, confidence, self.classes),
            np.bincount(items.labels, confidence**2, self.classes),
            np.zeros((self.classes, self.width)),
        )
        evidence.sums[found.seen] = found.mass[:, None] * found.means
        freedom = evidence.freedom
        trace = found.trace / max(freedom, 1e-12)
        if freedom <= 0.5 or not trace > 0.0:
            return None
        ridge = Ridge(found, 1.0 / freedom, SHRINKAGE * trace / self.width)
        model = self._model(evidence, ridge, trace)
        if model is None:
            return None
        evidence = evidence.shared_out(items, candidates, confidence, *model)
        model = self._model(evidence, ridge, trace)
        if model is None:
            return None
        weights, bias = model
        return {"prototypes": weights, "bias": bias}

    def _model(
        self, evidence: Evidence, ridge: Ridge, trace: float
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Weights and bias of every class, as added to CLIP's logits."""
        n, seen = evidence.mass, evidence.mass > LEAST_MASS
        if seen.sum() < 2:
            return None
        means = evidence.sums / np.maximum(n, 1e-9)[:, None]
        centre = means[seen].mean(axis=0)
        spread = np.where(seen[:, None], means - centre, 0.0)
        text = self.text_features - self.text_features[seen].mean(axis=0, dtype=np.float64)
        known = n * seen
        slope = (known @ (spread * text).sum(axis=1)) / max(
            known @ (text * text).sum(axis=1), 1e-12
        )
        slope = max(float(slope), 0.0)
        error = trace * evidence.squares / np.maximum(n, 1e-9) ** 2
        around = ((spread - slope * text) ** 2).sum(axis=1) - error
        kappa = trace / max(float(around[seen].mean()), LEAST_SPREAD * trace)
        precision = n + kappa
        posterior = (n[:, None] * spread + kappa * slope * text) / precision[:, None]
        weights = ridge.solve(posterior)
        bias = ridge.trace / (2.0 * precision) - 0.5 * (weights * posterior).sum(axis=1)
        bias -= weights @ centre
        most = self.capacity or float(n.max())
        fill = float(np.minimum(n / most, 1.0).mean())
        weight = TEMPER * (1.0 + SHRINKAGE) * math.sqrt(fill)
        return np.float32(weight) * weights, (weight * bias).astype(np.float32)

    def _score(self, batch: Batch, features: Array) -> Array:
        return self._linear(batch, features) + self._statistic("bias", batch)


@dataclass(frozen=True)
class Evidence:
    """What the queue holds of each class, in expected samples."""

    mass: np.ndarray  # (C,) n_k
    squares: np.ndarray  # (C,) sum of squared weights
    sums: np.ndarray  # (C, d) weighted sum of features

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the pooled covariance: a class of one sample has none."""
        seen = self.mass > LEAST_MASS
        return float((1.0 - self.squares[seen] / self.mass[seen] ** 2).sum())

    def shared_out(
        self,
        items: Items,
        candidates: np.ndarray,
        confidence: np.ndarray,
        weights: np.ndarray,
        bias: np.ndarray,
    ) -> Evidence:
        """One step of EM: each item goes to its candidate classes by their probability now."""
        unsure = np.flatnonzero(confidence < SURE)
        if len(unsure) == 0:
            return self
        features, options = items.features[unsure], candidates["class"][unsure]
        scores = candidates["log_prob"][unsure] + bias[options]
        for column in range(options.shape[1]):
            scores[:, column] += np.vecdot(features, weights[options[:, column]])
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        share *= (confidence[unsure] / share.sum(axis=1))[:, None]
        change = share.copy()
        change[:, 0] -= confidence[unsure]
        classes = len(self.mass)
        where, own = options.reshape(-1), options[:, 0]
        squares = np.bincount(where, share.reshape(-1) ** 2, classes)
        squares -= np.bincount(own, confidence[unsure] ** 2, classes)
        moves = np.zeros((classes, len(unsure)), np.float32)
        np.add.at(moves, (options, np.arange(len(unsure))[:, None]), change)
        return Evidence(
            self.mass + np.bincount(where, change.reshape(-1), classes),
            self.squares + squares,
            self.sums + moves @ features,
        )


def _candidates(classes: int) -> np.dtype[np.void]:
    """What is kept with a sample: its likeliest classes, and their log-probabilities."""
    few = min(CANDIDATES, classes)
    return np.dtype([("class", np.int32, (few,)), ("log_prob", np.float32, (few,))])
