"""Transduction for SOBA+: a whole set of images at once, by expectation maximisation.

Ours; close relatives are TransCLIP and the transductive form of ADAPT. A person with a folder has
no stream: every image may speak for every other. Class k is a Gaussian N(mu_k, Sigma), Sigma
shared, its text is a prior of its mean, and nothing is set by data set:

- E: r_ik = share of image i that is of class k = softmax over k of its logits, at first CLIP's
- M: n_k = sum_i r_ik and the means; S, the pooled covariance; A = (S + r I)^-1 with
  r = tr(S^2) / tr(S), the mean eigenvalue that S itself would choose. kappa and the slope of the
  means on the text as in SOBA+; m_k, the posterior mean, has a precision of p_k = n_k + kappa
- G_k(f) = (f - g) A m_k - m_k A m_k / 2 + D/2 (1/p_k - log(1 + 1/p_k)). D = tr(A S) is how many
  dimensions a class is described by. The last term is that of the predictive Gaussian: a mean that
  is not well known is further from its own images, and its Gaussian is wider
- logits_k = z_k + weight e_k (G_k - max of G over the known classes) + prior_k. A class counts by
  its evidence e_k = (n_k / (n_k + D))^2, images against dimensions; where there is none CLIP
  decides. Known are the classes with at least a quarter of the largest evidence
- weight = 4 min(1, doubt / 0.25)^2; doubt is one minus CLIP's mean confidence. Where CLIP has no
  doubts there is nothing to gain, and Gaussians know less than it does
- prior_k = s log(C pi_k). pi is shrunk to uniform by a Dirichlet whose strength the counts n_k
  give: no more uneven than chance makes them, and it is uniform. s = (1 - perplexity(pi)/C)^(1/4)
  holds it back unless many classes do not occur: what CLIP prefers is no prior.

The statistics of blocks add, so that a cluster can map `em_statistics` over shards, add in
shard order and go on with `em_update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import array_api_compat
import numpy as np

from soba.adapt._arrays import Array, Batch, like, read_batch, score_with_clip, to_host
from soba.adapt._mixture import held_back
from soba.adapt._statistics import inverse
from soba.adapt._values import whole
from soba.adapt.transductive import check_out

WEIGHT = 4.0  # nats of CLIP that one of the Gaussians is worth, at full evidence and doubt
DOUBT = 0.25  # of CLIP, from which on the Gaussians have their full weight
KNOWN = 0.25  # of the largest evidence, for a class to be known
PRIOR_POWER = 0.25  # of how few classes occur, in what their prior counts
LEAST_MASS = 0.05  # of images, for a class to have a mean
LEAST_SPREAD = 1e-3  # of tr(S), for the variance of means around their text
LEAST_SCATTER = 1e-5  # of tr(S): below are copies that rounded
MOVED = 2e-4  # of all shares: less in a round, and nothing moves any more

_BLOCK_LOGITS = 1 << 21  # scored at a time: products want many rows, memory few


@dataclass(frozen=True)
class Gaussians:
    """What the images say of the classes: float32, but for `known`."""

    weights: np.ndarray  # (C, d) A m_k
    bias: np.ndarray  # (C,)
    evidence: np.ndarray  # (C,) weight times e_k
    known: np.ndarray  # (C,) bool
    prior: np.ndarray  # (C,)


@dataclass(frozen=True)
class EMModel:
    """What scores a block; without Gaussians it is plain CLIP."""

    text: np.ndarray  # (C, d) text features times the logit scale, float32
    gaussians: Gaussians | None = None
    # Measured in the first round only, under plain CLIP.
    scatter: np.ndarray | None = None  # (d, d) sum of f f^T
    doubt: float = 0.0

    def logits(self, batch: Batch) -> Array:
        """(m, d) rows -> (m, C), in the batch's library."""
        x, xp, given = batch.x, batch.xp, self.gaussians
        logits = x @ like(batch, self.text).T
        if given is None:
            return logits
        scores = x @ like(batch, given.weights).T
        scores += like(batch, given.bias)
        known = like(batch, np.flatnonzero(given.known))
        rivals = scores if given.known.all() else scores[:, known]
        scores -= xp.max(rivals, axis=-1, keepdims=True)
        scores *= like(batch, given.evidence)
        logits += scores
        logits += like(batch, given.prior)
        return logits


@dataclass(frozen=True)
class EMStatistics:
    """Sums over images, in float64: those of two blocks add up to those of both."""

    count: int
    unsure: float  # sum of 1 - max_k r_ik
    mass: np.ndarray  # (C,) sum of r_ik
    squares: np.ndarray  # (C,) sum of r_ik^2
    sums: np.ndarray  # (C, d) sum of r_ik f_i
    scatter: np.ndarray | None  # (d, d) sum of f_i f_i^T, where the model does not know it yet

    def __add__(self, other: EMStatistics) -> EMStatistics:
        if (self.scatter is None) != (other.scatter is None):
            raise ValueError("statistics add under one model: only one of these has its scatter")
        return EMStatistics(
            self.count + other.count,
            self.unsure + other.unsure,
            self.mass + other.mass,
            self.squares + other.squares,
            self.sums + other.sums,
            None if self.scatter is None or other.scatter is None else self.scatter + other.scatter,
        )


def em_statistics(block: Batch, model: EMModel) -> EMStatistics:
    """The E step on some rows: their shares among the classes, summed up."""
    xp, x = block.xp, block.x
    shares = model.logits(block)
    shares -= xp.max(shares, axis=-1, keepdims=True)
    shares = xp.exp(shares)
    total = xp.sum(shares, axis=-1, keepdims=True)
    shares /= total  # the largest was exp(0)
    wide = {"axis": 0, "dtype": xp.float64}
    return EMStatistics(
        len(block),
        len(block) - float(xp.sum(1.0 / total, dtype=xp.float64)),
        to_host(xp.sum(shares, **wide)),
        to_host(xp.sum(shares * shares, **wide)),
        to_host(shares.T @ x).astype(np.float64),
        to_host(x.T @ x).astype(np.float64) if model.scatter is None else None,
    )


def em_update(statistics: EMStatistics, model: EMModel) -> EMModel:
    """The M step: the model that `statistics`, summed up under `model`, ask for.

    Plain CLIP where they hold too little: fewer than two classes, or no scatter within any.
    """
    scatter, doubt = model.scatter, model.doubt
    if scatter is None:
        scatter, doubt = statistics.scatter, statistics.unsure / max(statistics.count, 1)
    if scatter is None:
        raise ValueError("neither the statistics nor the model know the scatter")
    measured = EMModel(model.text, scatter=scatter, doubt=doubt)
    mass, seen = statistics.mass, statistics.mass > LEAST_MASS
    shares = np.maximum(mass, 1e-30)  # of a class without any image all sums are 0
    freedom = mass.sum() - (statistics.squares / shares).sum()
    if seen.sum() < 2 or freedom <= 0.5:
        return measured
    means = statistics.sums / shares[:, None]
    covariance = (scatter - statistics.sums.T @ means) / freedom
    trace = float(np.trace(covariance))
    if trace <= LEAST_SCATTER:
        return measured
    ridge = float(np.vdot(covariance, covariance)) / trace
    precision_matrix = inverse(covariance + ridge * np.eye(len(covariance)))
    dimensions = float(np.vdot(precision_matrix, covariance))  # tr(A S)

    centre, posterior, precision = _posterior(statistics, means, seen, model.text, trace)
    weights = posterior @ precision_matrix
    uncertain = dimensions * (1.0 / precision - np.log1p(1.0 / precision))
    bias = 0.5 * (uncertain - np.vecdot(weights, posterior)) - weights @ centre
    evidence = (mass / (mass + dimensions)) ** 2
    # CLIP's own counts say which classes it prefers, not which there are.
    prior = np.zeros(len(mass)) if model.gaussians is None else log_prior(mass)
    gaussians = Gaussians(
        weights=weights.astype(np.float32),
        bias=bias.astype(np.float32),
        evidence=(WEIGHT * min(1.0, doubt / DOUBT) ** 2 * evidence).astype(np.float32),
        known=evidence >= KNOWN * evidence.max(),
        prior=prior.astype(np.float32),
    )
    return replace(measured, gaussians=gaussians)


def _posterior(
    statistics: EMStatistics, means: np.ndarray, seen: np.ndarray, text: np.ndarray, trace: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The centre g (d,), the posterior means around it (C, d) and their precisions (C,)."""
    mass = statistics.mass
    centre = means[seen].mean(axis=0)
    spread = means - centre  # of a class without any image it will count as nothing
    directions = text.astype(np.float64)
    directions = directions - directions[seen].mean(axis=0)
    along, lengths = np.vecdot(spread, directions), np.vecdot(directions, directions)
    slope = max(mass[seen] @ along[seen] / max(mass[seen] @ lengths[seen], 1e-12), 0.0)
    rest = spread - slope * directions
    around = np.vecdot(rest, rest)[seen] - trace * statistics.squares[seen] / mass[seen] ** 2
    variance = mass[seen] @ around / mass[seen].sum()
    kappa = trace / max(variance, LEAST_SPREAD * trace)
    precision = mass + kappa
    posterior = (mass[:, None] * spread + kappa * slope * directions) / precision[:, None]
    return centre, posterior, precision


def log_prior(mass: np.ndarray) -> np.ndarray:
    """(C,) what the class counts say of the classes' chances: log(C pi), held back; 0 is uniform.

    Counts of equal chances vary by M (1 - 1/C) around their mean M. What they vary more is that of
    the chances, and gives the Dirichlet that shrinks them, by moments.
    """
    count, classes = float(mass.sum()), len(mass)
    ratio = mass.var() / (count / classes * (1.0 - 1.0 / classes)) if classes > 1 else 0.0
    if ratio <= 1.0:
        return np.zeros(classes)
    strength = max(count - ratio, 0.0) / (ratio - 1.0)  # of the Dirichlet, in images
    chances = (mass + strength / classes) / (count + strength)
    return held_back(chances, PRIOR_POWER)


def transduce(text: np.ndarray, features: Array, rounds: int, out: Array | None) -> Array:
    """The logits of a whole set: at most `rounds` of EM over its blocks, then one pass to score.

    `text` holds the text features times the logit scale. See `soba.SOBAPlus.transduce`.
    """
    rows = _Rows(features, text)
    if out is not None:
        check_out(out, rows.first, rows.shape_out)
    return rows.scored(_fitted(rows, text, rounds), out)


def em_fit(text: np.ndarray, features: Array, *, rounds: int = 20) -> EMModel:
    """The model that `transduce` scores with, for those who score a block at a time."""
    return _fitted(_Rows(features, text), text, rounds)


def _fitted(rows: _Rows, text: np.ndarray, rounds: int) -> EMModel:
    return em_rounds(text, lambda model: sum_up(rows.blocks(), model), rounds=rounds)


def em_rounds(
    text: np.ndarray, statistics_of: Callable[[EMModel], EMStatistics | None], *, rounds: int = 20
) -> EMModel:
    """E and M in turn, until nothing moves any more; who sums up, and where, is the caller's.

    `statistics_of` gives the statistics of all images under a model, None where there are none.
    """
    whole(rounds, "rounds", least=0)
    model = EMModel(text)
    sums: np.ndarray | None = None
    for _ in range(rounds):
        statistics = statistics_of(model)
        if statistics is None:
            break
        model = em_update(statistics, model)
        moved = np.inf if sums is None else np.linalg.norm(statistics.sums - sums, axis=1).sum()
        if model.gaussians is None or moved <= 2.0 * MOVED * statistics.count:
            break
        sums = statistics.sums
    return model


def sum_up(blocks: Iterator[Batch], model: EMModel) -> EMStatistics | None:
    """The statistics of all blocks, added in their order; None where there are no blocks."""
    total: EMStatistics | None = None
    for block in blocks:
        statistics = em_statistics(block, model)
        total = statistics if total is None else total + statistics
    return total


def block_rows(classes: int) -> int:
    """How many rows are scored at a time."""
    return min(max(_BLOCK_LOGITS // classes, 64), 8192)


class _Rows:
    """Features that are read a block at a time, as often as it takes: they may be on disk."""

    def __init__(self, features: Array, text: np.ndarray) -> None:
        if not array_api_compat.is_array_api_obj(features):
            features = np.asarray(features)
        # The first row, or none, is read to check kind and shape, and to know the kind of results.
        first = read_batch(features if features.ndim < 2 else features[:1], text.shape[1])
        if first.single:
            raise ValueError(f"transduce takes a set, (n, {text.shape[1]}) features, not one row")
        self._features, self._text, self.first = features, text, first
        classes = len(text)
        self._step = block_rows(classes)
        if first.views:
            self._step = max(1, self._step // int(features.shape[1]))
        self.shape_out = (int(features.shape[0]), classes)

    def blocks(self) -> Iterator[Batch]:
        """Checked unit rows; of views, what CLIP makes of them."""
        for start in range(0, int(self._features.shape[0]), self._step):
            yield self._block(start)

    def _block(self, start: int) -> Batch:
        part = self._features[start : start + self._step, ...]
        try:
            batch = read_batch(part, self._text.shape[1])
        except ValueError as error:
            counted = f" (counted from row {start})" if start else ""
            raise ValueError(f"{error}{counted}") from error
        if not batch.views:
            return batch
        joined = score_with_clip(batch, like(batch, self._text)).features
        return Batch(batch.xp, joined, False)

    def scored(self, model: EMModel, out: Array | None) -> Array:
        xp, x = self.first.xp, self.first.x
        if out is None:
            out = xp.empty(self.shape_out, dtype=x.dtype, device=self.first.device)
        at = 0
        for block in self.blocks():
            out[at : at + len(block), :] = model.logits(block)
            at += len(block)
        return out
