"""EM over the sample: from the images that are kept to what answers.

Every refresh begins with CLIP's own shares, so that nothing drifts: what comes out is a function of
the sample alone. Each image is shared out among the few classes that CLIP holds likeliest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soba.adapt._arrays import confidence, softmax
from soba.adapt.sample import Sampled
from soba.adapt.soba_plus.answer import add_experts
from soba.adapt.soba_plus.model import Gaussians, Shares, fit_gaussians
from soba.adapt.soba_plus.prior import blocks_in_time, described, log_prior, predicted, sureness
from soba.adapt.soba_plus.segments import add_segments, option_scores

ROUNDS = 3  # of EM, the first of them on CLIP's shares; each more costs a pass and gains little
CANDIDATES = 16  # classes that an image is shared out among
FITTED = 4096  # images of the sample that are fitted
_BLOCK_LOGITS = 1 << 19  # scored at a time


@dataclass(frozen=True)
class Candidates:
    """What CLIP says of some images."""

    classes: np.ndarray  # (m, K) CLIP's likeliest
    logits: np.ndarray  # (m, K)
    doubt: np.ndarray  # (m,) entropy in nats

    @classmethod
    def of(cls, features: np.ndarray, text: np.ndarray) -> Candidates:
        """Of rows (m, d) under a scaled text (C, d)."""
        count, few = len(features), min(CANDIDATES, len(text))
        classes, logits = np.empty((count, few), np.int32), np.empty((count, few), np.float32)
        doubt = np.empty(count, np.float32)
        step = max(64, _BLOCK_LOGITS // len(text))
        for start in range(0, count, step):
            rows = slice(start, start + step)
            scores = features[rows] @ text.T
            doubt[rows] = confidence(np, scores)[1]
            best = np.argpartition(scores, -few, axis=1)[:, -few:]
            classes[rows], logits[rows] = best, np.take_along_axis(scores, best, axis=1)
        return cls(classes, logits, doubt)


def fit(
    sample: Sampled, text: np.ndarray, said: Candidates, weights: np.ndarray
) -> tuple[Gaussians, np.ndarray] | None:
    """EM over a sample in canonical order: the Gaussians, and h log(C pi) of the classes (C,).

    `text` is (C, d) of unit rows, `said` what CLIP says of the sample, `weights` (m,) what each
    image counts. None where no class has scatter.
    """
    rows, shares, classes = sample.features, softmax(np, said.logits), len(text)
    weighted = rows * np.sqrt(weights).astype(np.float32)[:, None]
    moments = (weighted.T @ weighted).astype(np.float64)
    sure = sureness(said.doubt, classes) * weights
    blocks = blocks_in_time(sample.places, classes)
    in_blocks = np.stack(
        [_counts(said.classes[some], shares[some], sure[some], classes) for some in blocks]
    )
    images = np.array([weights[some].sum() for some in blocks])
    counts = in_blocks.sum(axis=0)
    squares = _counts(said.classes, shares**2, sure**2, classes)
    describes = described(counts, squares, float(images.sum()))
    gaussians: Gaussians | None = None
    for _ in range(ROUNDS):
        if gaussians is not None:
            prior = (describes * log_prior(counts)).astype(np.float32)
            shares = _expected(rows, said, gaussians, prior)
            counts = _counts(said.classes, shares, sure, classes)
        gaussians = fit_gaussians(
            _shares(rows, said.classes, shares, weights, classes), moments, text
        )
        if gaussians is None:
            return None
    assert gaussians is not None
    return gaussians, (predicted(in_blocks, images) * log_prior(counts)).astype(np.float32)


def _counts(
    options: np.ndarray, shares: np.ndarray, counted: np.ndarray, classes: int
) -> np.ndarray:
    """(C,) what images (m,) count for each class, by their shares (m, K) of some options (m, K)."""
    return np.bincount(options.reshape(-1), (counted[:, None] * shares).reshape(-1), classes)


def _shares(
    rows: np.ndarray, options: np.ndarray, shares: np.ndarray, weights: np.ndarray, classes: int
) -> Shares:
    """What each class holds of rows (m, d) that are shared out among some options (m, K)."""
    mass = _counts(options, shares, weights, classes)
    squares = _counts(options, shares**2, weights, classes)
    sums = np.zeros((classes, rows.shape[1]), np.float32)
    at = np.repeat(np.arange(len(rows)), options.shape[1])
    add_segments(sums, rows, at, options.reshape(-1), (weights[:, None] * shares).reshape(-1))
    return Shares(mass, squares, sums.astype(np.float64))


def _expected(
    rows: np.ndarray, said: Candidates, gaussians: Gaussians, prior: np.ndarray
) -> np.ndarray:
    """The E step: responsibilities (m, K) of each image's candidates.

    It weighs one nat of the Gaussians as one of CLIP's, times CLIP's doubt: an image is in the
    means that it is judged by.
    """
    options, logits = said.classes, said.logits.copy()
    scores = option_scores(rows, np.arange(len(rows)), gaussians.weights, options)
    scores += (gaussians.bias + gaussians.width)[options]
    evidence, log_pi = gaussians.evidence[options], prior[options]
    add_experts(np, logits, scores, said.doubt, evidence, log_pi, log_pi - prior.max())
    shared: np.ndarray = softmax(np, logits)
    return shared
